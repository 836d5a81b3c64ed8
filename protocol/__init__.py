"""Kafka's wire format: bytes in, spans and fields out. No asyncio, no clock, nothing of the gateway."""
