"""Bytes that a client fetches (KIP-13, KIP-55): four bytes and the body of every Fetch response."""

from gateway.quotas.kinds.kind import QuotaKind

KIND = QuotaKind(
    name="fetch",
    config_key="consumer_byte_rate",
    unit="bytes",
    description="bytes per second that the entity may fetch",
    order=1,
)
