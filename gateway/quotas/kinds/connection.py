"""Connections that an address opens (KIP-612). Each connection counts as one, even if the gateway closes it at once."""

from gateway.quotas.kinds.kind import QuotaKind, Unit

KIND = QuotaKind(
    name="connection",
    config_key="connection_creation_rate",
    unit=Unit("connections", grafana="cps"),
    description="connections per second that the address may open",
    order=3,
    entity_types=frozenset({"ip"}),
    largest=2**31 - 1,
)
