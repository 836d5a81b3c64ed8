"""Bytes that a client fetches (KIP-13, KIP-55): four bytes and the body of every response to Fetch and ShareFetch."""

from gateway.quotas.kinds.kind import BYTES, Charge, FullRequest, QuotaKind
from protocol.api_keys import ApiKey

KIND = QuotaKind(
    name="fetch",
    config_key="consumer_byte_rate",
    unit=BYTES,
    description="bytes per second that the entity may fetch",
    order=1,
    in_kafka=True,
    charge=Charge(frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH}), by="response", per_byte=1),
    full_request=FullRequest(1_048_576, "one full batch of 1 MiB", "lower batch.size at the producers of its topics"),
    in_overview=True,
)
