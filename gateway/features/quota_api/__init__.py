"""Kafka's client quota API, answered by the gateway (KIP-546)."""
