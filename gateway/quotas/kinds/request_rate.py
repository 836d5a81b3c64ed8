"""Requests that a client sends: every request costs one, except those with which a connection begins."""

from gateway.quotas.kinds.kind import Charge, QuotaKind, Unit
from gateway.quotas.token_bucket import TokenBucket
from protocol.api_keys import BEFORE_AUTHENTICATION, ApiKey

KIND = QuotaKind(
    name="request_rate",
    config_key="request_rate",
    unit=Unit("requests", grafana="reqps"),
    description="requests per second that the entity may send",
    order=4,
    in_kafka=False,
    # Weir does not know the user before, and a muted client could not authenticate.
    charge=Charge(frozenset(ApiKey) - BEFORE_AUTHENTICATION, by="request", per_message=1),
    meters={"token_bucket": TokenBucket.for_bytes},
)
