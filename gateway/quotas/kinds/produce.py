"""Bytes that a client produces (KIP-13, KIP-55): the length field of every Produce request."""

from gateway.quotas.kinds.kind import QuotaKind

KIND = QuotaKind(
    name="produce",
    config_key="producer_byte_rate",
    unit="bytes",
    description="bytes per second that the entity may produce",
    order=0,
)
