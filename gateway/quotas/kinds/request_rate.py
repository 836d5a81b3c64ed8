"""Requests that a client sends: every request costs one, except those with which a connection begins."""

from typing import Final

from gateway.quotas.kinds.kind import Charge, QuotaKind, Unit
from gateway.quotas.token_bucket import TokenBucket
from protocol.api_keys import ApiKey

# Clients send these before Weir knows their user, and cannot authenticate while they are muted.
BEFORE_AUTHENTICATION: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

KIND = QuotaKind(
    name="request_rate",
    config_key="request_rate",
    unit=Unit("requests", grafana="reqps"),
    description="requests per second that the entity may send",
    order=4,
    in_kafka=False,
    charge=Charge(frozenset(ApiKey) - BEFORE_AUTHENTICATION, by="request", per_message=1),
    meters={"token_bucket": TokenBucket.for_bytes},
)
