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

__all__ = ["KINDS", "QuotaKind"]
