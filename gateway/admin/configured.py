"""`/api/quotas/configured`: each limit that the config file or the quota API sets, with its place.

`weir quotas --all` lists those that no client has used lately: such quotas have no bucket.
"""

from typing import Any, Final

from gateway.config.places import Places
from gateway.quotas.entity import MAX_CONNECTIONS, ClientQuotaEntity, DynamicQuotas, Source
from gateway.quotas.kinds import BY_CONFIG_KEY

CONFIGURED: Final = "/api/quotas/configured"


def configured_rows(places: Places, dynamic: DynamicQuotas) -> list[dict[str, Any]]:
    """A row for each entity and quota key, in the file's order, then those of the quota API, which override the file."""
    by_api = {entity.shortened(): limits for entity, limits in dynamic.items()}
    rows = []
    for quota in places.quotas.rows:
        entity = quota.entity.shortened()
        overriding = by_api.get(entity, {})
        rows += [_row(entity, key, limit, places, Source.FILE) for key, limit in quota.limits.items() if key not in overriding]
        if quota.exempt:
            rows.append(_row(entity, "", None, places, Source.FILE))
    for entity, limits in by_api.items():
        rows += [_row(entity, key, limit, places, Source.API) for key, limit in limits.items()]
    return rows


def _row(entity: ClientQuotaEntity, key: str, limit: float | None, places: Places, source: Source) -> dict[str, Any]:
    """A row without a key is an exemption from rates."""
    kind = BY_CONFIG_KEY.get(key)
    if kind is not None:
        unit = kind.unit.name + ("/s" if kind.per_second else "")
    else:
        unit = "connections" if key == MAX_CONNECTIONS else ""
    return {
        "entity": str(entity),
        "key": key,
        "limit": limit,
        "unit": unit,
        "exempt": not key,
        "set_in": places.of_entity(str(entity), source.value),
    }
