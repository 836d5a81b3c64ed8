"""Bytes that a client fetches (KIP-13, KIP-55): four bytes and the body of every Fetch response."""

from gateway.quotas.kinds.kind import QuotaKind
from gateway.quotas.small import FullRequest

KIND = QuotaKind(
    name="fetch",
    config_key="consumer_byte_rate",
    unit="bytes",
    description="bytes per second that the entity may fetch",
    order=1,
    full_request=FullRequest(1_048_576, "one full batch of 1 MiB", "lower batch.size at who produces what it reads"),
)
