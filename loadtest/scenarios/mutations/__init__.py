"""The same script of topic changes under the broker's own controller_mutation_rate and under Weir's."""
