"""Requests of one API that a client sends: a kind for each API that clients can be limited in."""

from collections.abc import Mapping
from typing import Final

from gateway.quotas.kinds.kind import Charge, QuotaKind
from gateway.quotas.kinds.request_rate import KIND as REQUEST_RATE
from protocol.api_keys import APIS, BEFORE_AUTHENTICATION, ApiKey

KEY: Final = "request_rates"
"""The key in a row of the config. Elsewhere a limit has the key `request_rates.Metadata`."""

_FIRST: Final = 100


def _kind(api: ApiKey) -> QuotaKind:
    name = APIS[api].name
    return QuotaKind(
        name=f"{REQUEST_RATE.name}.{name}",
        config_key=f"{KEY}.{name}",
        unit=REQUEST_RATE.unit,
        description=f"{name} requests per second that the entity may send",
        order=_FIRST + api,
        in_kafka=False,
        charge=Charge(frozenset({api}), by="request", per_message=1),
        integral=False,
        meters=REQUEST_RATE.meters,
        api=api,
    )


BY_API: Mapping[str, QuotaKind] = {
    APIS[api].name: _kind(api) for api in ApiKey if APIS[api].on_broker_listener and api not in BEFORE_AUTHENTICATION
}
"""The kinds by Kafka's name of the API, such as `OffsetCommit`."""

ALL: tuple[QuotaKind, ...] = tuple(BY_API.values())


def refusal(name: str) -> str | None:
    """Why an API cannot be limited by itself; None for an API that can, and for an unknown name."""
    spec = next((APIS[api] for api in ApiKey if APIS[api].name == name), None)
    if spec is None or name in BY_API:
        return None
    if ApiKey(spec.key) in BEFORE_AUTHENTICATION:
        return "clients send it before Weir knows their user, and a muted client cannot log in"
    return "brokers send it to each other, and never to a listener of clients"


def nested(limits: Mapping[str, float]) -> dict[str, object]:
    """Limits by quota key as a row of the config file has them."""
    keys = {kind.config_key: name for name, kind in BY_API.items()}
    rates = {keys[key]: limit for key, limit in limits.items() if key in keys}
    return {key: limit for key, limit in limits.items() if key not in keys} | ({KEY: rates} if rates else {})
