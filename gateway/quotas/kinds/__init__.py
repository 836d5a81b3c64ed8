"""The registry of quota kinds. A kind is a module of this package with a `KIND`; every consumer iterates over `KINDS`.

A module with several kinds has a tuple `ALL` instead.
"""

from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules

from gateway.quotas.kinds.kind import BYTES, QuotaKind, Unit
from protocol.api_keys import ApiKey


def _kinds_of(module: str) -> tuple[QuotaKind, ...]:
    found = import_module(f"{__name__}.{module}")
    kinds: tuple[QuotaKind, ...] = getattr(found, "ALL", None) or (found.KIND,)
    return kinds


def by_name(kinds: Iterable[QuotaKind]) -> dict[str, QuotaKind]:
    """The kinds by name, in the order of tables. Raises ValueError if two kinds have one name, config key or order."""
    found = sorted(kinds, key=lambda kind: kind.order)
    for field in ("name", "config_key", "order"):
        twice = [value for value, count in Counter(getattr(kind, field) for kind in found).items() if count > 1]
        if twice:
            raise ValueError(f"{__name__}: two kinds have the {field} {twice[0]!r} — give one of them another {field}")
    return {kind.name: kind for kind in found}


KINDS: dict[str, QuotaKind] = by_name(
    kind for module in iter_modules(__path__) if module.name != "kind" for kind in _kinds_of(module.name)
)
"""Every quota kind by its name, in the order of tables."""

ROW_KINDS = tuple(kind for kind in KINDS.values() if kind.api is None)
"""The kinds with a key of their own in the rows of the config. The others share the key `request_rates`."""

BY_CONFIG_KEY: dict[str, QuotaKind] = {kind.config_key: kind for kind in KINDS.values()}

UNITS: dict[Unit, list[QuotaKind]] = {
    unit: [kind for kind in KINDS.values() if kind.unit == unit] for unit in dict.fromkeys(kind.unit for kind in KINDS.values())
}
"""The kinds of each unit, in the order of tables."""

CLIENT_KINDS = tuple(kind.name for kind in ROW_KINDS if "ip" not in kind.entity_types)
"""The names of the kinds whose quotas belong to users and client-ids, not to addresses. `request_rate` includes its APIs."""


def is_client_kind(name: str) -> bool:
    """True for these names, and for the kinds of single APIs such as `request_rate.Metadata`."""
    return name in KINDS and "ip" not in KINDS[name].entity_types


_REQUEST_KINDS = {
    api: [kind for kind in KINDS.values() if kind.charge is not None and kind.charge.has_figure_for(api)] for api in ApiKey
}


def request_kinds(api: ApiKey) -> list[QuotaKind]:
    """The kinds that charge a figure for each request of an API."""
    return _REQUEST_KINDS[api]


REQUEST_KEYS = frozenset(
    [kind.config_key for kind in KINDS.values() if kind.spares_members]
    + [kind.config_key for api in ApiKey if api is not ApiKey.PRODUCE for kind in request_kinds(api)]
)
"""The rates of requests, and other quotas of kinds that charge a figure for requests other than Produce."""


def small_quota_warning(config_key: str, limit: float, entity: str) -> str | None:
    """A warning if a mute under a quota of `limit` per second may outlast a client's timeout; None if it cannot.

    Weir does not enforce every key of the quota API (`request_percentage`): such a key gets no warning.
    """
    kind = BY_CONFIG_KEY.get(config_key)
    if kind is None or kind.full_request is None or not kind.full_request.outlasts_timeout(limit):
        return None
    return kind.full_request.warning(limit, kind.unit.name, entity)


__all__ = [
    "BYTES",
    "BY_CONFIG_KEY",
    "CLIENT_KINDS",
    "KINDS",
    "REQUEST_KEYS",
    "ROW_KINDS",
    "UNITS",
    "QuotaKind",
    "Unit",
    "is_client_kind",
    "request_kinds",
    "small_quota_warning",
]
