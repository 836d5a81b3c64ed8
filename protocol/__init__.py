"""Encodes and decodes Kafka's wire format. This package uses no asyncio, no clock and nothing of the gateway."""
