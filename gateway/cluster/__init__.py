"""Weir as a client of the Kafka cluster behind it."""
