"""Warnings of limits in `quotas.entities` that no client can have, because another row comes first for each of their clients.

The warnings hold with any values of the quota API: it adds limits to entities, and can't take away those of the file.
"""

from collections.abc import Iterator, Sequence

from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityName, EntityQuota
from gateway.quotas.kinds import BY_CONFIG_KEY
from gateway.quotas.schedule import When


def unreached_warnings(entities: Sequence[EntityQuota]) -> Iterator[str]:
    """One line for each limit and shadow limit that no client can have."""
    rows: dict[ClientQuotaEntity, list[EntityQuota]] = {}
    for row in entities:
        rows.setdefault(row.entity, []).append(row)
    for index, row in enumerate(entities):
        earlier = [found for entity in _earlier(row.entity) if (found := rows.get(entity)) is not None]
        if not earlier:
            continue
        shadows = [(f"shadow.{key}", key) for key in row.shadow]
        for name, key in (*((key, key) for key in row.limits), *shadows):
            first = next((others for others in earlier if _come_first(others, row, key, shadow=name != key)), None)
            if first is not None:
                reason = "is exempt" if all(other.exempt for other in first) else "has this key"
                yield (
                    f"quotas.entities[{index}].{name}: never applies, because the row {first[0]} {reason} and comes first for"
                    f" each of these clients — {_remedy(row.entity, first[0].entity)}"
                )


def _come_first(others: Sequence[EntityQuota], row: EntityQuota, key: str, *, shadow: bool) -> bool:
    """True if one of the rows of an earlier entity counts whenever `row` does, and each of them decides about the key.

    A default limit yields to a later exemption that names its client, but to no later limit.
    """
    return (
        _selects(others[0].entity, key)
        and all(other.exempt or key in other.limits or (shadow and key in other.shadow) for other in others)
        and any(_covers(other.when, row.when) for other in others)
    )


def _earlier(entity: ClientQuotaEntity) -> Iterator[ClientQuotaEntity]:
    """The entities of earlier levels that hold for all clients of this one: every client has a user and a client-id."""
    user, client_id = entity.user, entity.client_id
    if user is not None and client_id is None:
        yield ClientQuotaEntity(user, DEFAULT)
    elif user is None and client_id is not None:
        names: tuple[EntityName, ...] = (client_id, DEFAULT, None)
        yield from dict.fromkeys(ClientQuotaEntity(DEFAULT, name) for name in names)


def _selects(entity: ClientQuotaEntity, key: str) -> bool:
    """False for limits of connections, which have no client-id: only rows with a user alone decide about them."""
    kind = BY_CONFIG_KEY.get(key)
    return entity.client_id is None or (kind is not None and "client-id" in kind.entity_types)


def _covers(outer: When | None, inner: When | None) -> bool:
    """True if the time `outer` surely has the whole time `inner`. None: always."""
    if outer is None or outer == inner:
        return True
    if inner is None or outer.schedule not in (None, inner.schedule):
        return False
    return outer.until is None or (inner.until is not None and inner.until <= outer.until)


def _remedy(entity: ClientQuotaEntity, first: ClientQuotaEntity) -> str:
    if first == ClientQuotaEntity(DEFAULT) and entity.client_id is not DEFAULT:
        return f'add user to the row, or write client-id: "{DEFAULT.value}" in place of user: "{DEFAULT.value}"'
    return "remove one of the two"
