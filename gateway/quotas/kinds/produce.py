"""Bytes that a client produces (KIP-13, KIP-55): the length field of every Produce request."""

from gateway.quotas.kinds.kind import BYTES, REQUEST_TIMEOUT, Charge, FullRequest, QuotaKind
from protocol.api_keys import ApiKey

KIND = QuotaKind(
    name="produce",
    config_key="producer_byte_rate",
    unit=BYTES,
    description="bytes per second that the entity may produce",
    order=0,
    in_kafka=True,
    charge=Charge(frozenset({ApiKey.PRODUCE}), by="request", per_byte=1),
    full_request=FullRequest(1_048_576, "one full request of 1 MiB", "lower max.request.size at the client", REQUEST_TIMEOUT),
    in_overview=True,
)
