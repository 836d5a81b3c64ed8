"""Connections that an address (KIP-612) or a user opens. Each counts as one, even if the gateway closes it at once."""

from gateway.quotas.kinds.kind import QuotaKind, Unit
from gateway.whole_number import MAX_INT32

KIND = QuotaKind(
    name="connection",
    config_key="connection_creation_rate",
    unit=Unit("connections", grafana="cps"),
    description="connections per second that the address or user may open",
    order=3,
    in_kafka=True,
    entity_types=frozenset({"ip", "user"}),
    largest=MAX_INT32,
)
