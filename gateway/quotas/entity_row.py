"""Rows of `quotas.entities` as the config file has them."""

from collections.abc import Mapping

from gateway.quotas.entity import EntityQuota
from gateway.quotas.kinds.request_rates import nested


def shadow_row(shadow: Mapping[str, float]) -> dict[str, object]:
    """The key `shadow`; empty without shadow limits."""
    return {"shadow": nested(shadow)} if shadow else {}


def entity_row(quota: EntityQuota) -> dict[str, object]:
    exempt: object = list(quota.exempt_from) or quota.exempt
    when = quota.when.keys() if quota.when else {}
    return {
        **quota.entity.file_names(),
        **({"exempt": exempt} if exempt else {}),
        **nested(quota.limits),
        **shadow_row(quota.shadow),
        **when,
    }
