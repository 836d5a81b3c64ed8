"""The registry of quota kinds: one module each, found by being in this package.

Config keys, metric labels, table columns and the contract tests iterate over `KINDS`, so that a new kind is one new file.
"""

from importlib import import_module
from pkgutil import iter_modules

from gateway.quotas.kinds.kind import QuotaKind

KINDS: dict[str, QuotaKind] = {
    kind.name: kind
    for kind in sorted(
        (import_module(f"{__name__}.{module.name}").KIND for module in iter_modules(__path__) if module.name != "kind"),
        key=lambda kind: kind.order,
    )
}
"""Every quota kind by its name, in the order in which tables show them."""

BY_CONFIG_KEY: dict[str, QuotaKind] = {kind.config_key: kind for kind in KINDS.values()}
"""The same by Kafka's own name of the quota."""


def small_quota_warning(config_key: str, limit: float, whose: str) -> str | None:
    """What is to be said of a quota under which a client's session may end while it is muted; None: nothing.

    `limit` is per second, `whose` the entity's text. A key that Weir does not reckon (`request_percentage`) gets none.
    """
    kind = BY_CONFIG_KEY.get(config_key)
    if kind is None or kind.full_request is None or not kind.full_request.outlasts_session(limit):
        return None
    return kind.full_request.warning(limit, kind.unit, whose)


__all__ = ["BY_CONFIG_KEY", "KINDS", "QuotaKind", "small_quota_warning"]
