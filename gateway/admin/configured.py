"""`/api/quotas/configured`: each limit that the config file or the quota API sets, with its place.

`weir quotas --all` lists those that no client has used lately: such quotas have no bucket.
"""

from typing import Any, Final

from gateway.config.places import Places
from gateway.quotas.entity import MAX_CONNECTIONS, ClientQuotaEntity, DynamicQuotas, Source
from gateway.quotas.kinds import BY_CONFIG_KEY
from gateway.quotas.quota_table import QuotaTable

CONFIGURED: Final = "/api/quotas/configured"


def configured_rows(places: Places, dynamic: DynamicQuotas) -> list[dict[str, Any]]:
    """A row for each limit in effect, by entity and quota key, then for each shadow limit, and for each exempt entity."""
    file = places.quotas.rows
    limits = QuotaTable(file, dynamic).entities()
    rows = []
    for entity in dict.fromkeys([*(quota.entity for quota in file), *limits]):
        rows += [_row(entity, key, limit.per_second, places, limit.source) for key, limit in limits.get(entity, {}).items()]
    rows += [_row(row.entity, key, limit, places, shadow=True) for row in file for key, limit in row.shadow.items()]
    return rows + [_row(quota.entity, "", None, places) for quota in file if quota.exempt]


def _row(
    entity: ClientQuotaEntity,
    key: str,
    limit: float | None,
    places: Places,
    source: Source = Source.FILE,
    *,
    shadow: bool = False,
) -> dict[str, Any]:
    """A row without a key is an exemption from rates."""
    kind = BY_CONFIG_KEY.get(key)
    name = str(entity.shortened())
    return {
        "entity": name,
        "key": key,
        "limit": limit,
        "unit": kind.limit_unit if kind is not None else "connections" if key == MAX_CONNECTIONS else "",
        "exempt": not key,
        "shadow": shadow,
        "set_in": places.of_entity(name, source.value),
    }
