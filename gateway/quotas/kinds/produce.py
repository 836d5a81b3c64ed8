"""Bytes that a client produces (KIP-13, KIP-55): the length field of every Produce request."""

from gateway.quotas.kinds.kind import QuotaKind
from gateway.quotas.small import FullRequest

KIND = QuotaKind(
    name="produce",
    config_key="producer_byte_rate",
    unit="bytes",
    description="bytes per second that the entity may produce",
    order=0,
    full_request=FullRequest(1_048_576, "one full request of 1 MiB", "lower max.request.size at the client"),
)
