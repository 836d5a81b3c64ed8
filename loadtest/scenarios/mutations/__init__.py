"""Compares the broker's own controller_mutation_rate with Weir's, with the same script of topic changes."""
