"""Connections that an address opens (KIP-612): each counts as one, whatever comes of it afterwards."""

from gateway.quotas.kinds.kind import QuotaKind

KIND = QuotaKind(
    name="connection",
    config_key="connection_creation_rate",
    unit="connections",
    description="connections per second that the address may open",
    order=3,
    entity_types=frozenset({"ip"}),
    largest=2**31 - 1,
)
