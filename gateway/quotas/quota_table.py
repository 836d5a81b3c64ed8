"""The table of all configured quotas, and Kafka's eight levels of precedence.

A limit comes from the config file or from the quota API (AlterClientQuotas). For the same entity and key, the API's value
overrides the file's, as Kafka's dynamic configs do.

Source: `ClientQuotaManager.DefaultQuotaCallback.quotaLimit` (KIP-13, KIP-55, KIP-546).
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from gateway.quotas.entity import (
    DEFAULT,
    MAX_NAME,
    TOPICS,
    VOLUMES,
    ClientQuotaEntity,
    DynamicQuotas,
    EntityName,
    EntityQuota,
    Resolution,
    Source,
    Tags,
    short_name,
)
from gateway.quotas.kinds import KINDS

LEAST_LIMIT: Final = 1e-9
LARGEST_LIMIT: Final = 2.0**63
"""Per second. Kafka's API accepts every positive double; smaller or larger ones would overflow in the arithmetic of meters."""

_MAX_RESOLVED: Final = 10_000
"""The clients, users and addresses whose resolution a table remembers."""

_NO_LIMITS: Final[Mapping[str, float]] = {}
_NO_ENTITIES: Final[Mapping[ClientQuotaEntity, float]] = {}

ChangedEntities = Mapping[str, Set[ClientQuotaEntity]]
"""The entities with another limit, by quota key. Their names are those of buckets."""


class QuotaLimit(NamedTuple):
    """One limit and its origin."""

    per_second: float
    source: Source


class QuotaTable:
    """All configured entities of the file and of the quota API. Immutable: a change makes a new table.

    An entity that the file exempts is exempt from every quota except those that the API sets for it.
    """

    def __init__(self, quotas: Iterable[EntityQuota] = (), dynamic: DynamicQuotas | None = None) -> None:
        self._rows = quotas
        self._of_file: dict[str, dict[ClientQuotaEntity, float]] = {}
        self._dynamic: DynamicQuotas = {}
        self._limits: dict[str, dict[ClientQuotaEntity, QuotaLimit]] = {}  # those in effect, by their names in buckets
        self._resolved: dict[tuple[str, str | None, str | None, str | None], Resolution] = {}  # by key, user, client-id and ip
        self._exact: dict[ClientQuotaEntity, ClientQuotaEntity] = {}  # the entities with longer names
        self._small_quotas: dict[str, int] | None = None  # until they are asked for
        file = list(quotas)
        exempt = {quota.entity for quota in file if quota.exempt}
        self._exempt = {entity.shortened() for entity in exempt}
        self._exempt_from = {
            name: frozenset([quota.entity for quota in file if name in quota.exempt_from]) for name in (TOPICS, VOLUMES)
        }
        for quota in file:
            if quota.entity not in exempt:
                short = self._short(quota.entity)
                for key, limit in quota.limits.items():
                    self._of_file.setdefault(key, {})[short] = limit
                    self._put(key, short, None)
        self._alter(dynamic or {})

    def followed_by(self, quotas: Sequence[EntityQuota], dynamic: DynamicQuotas) -> "TableChange":
        """The change to a table of these quotas. It takes long if thousands of rows differ; a thread may compute it."""
        if quotas is self._rows:
            after, changed = self.altered(dynamic)
            return TableChange(self, after, quotas, dynamic, changed, frozenset(), _has_group(changed.values()))
        table = type(self)(quotas, dynamic)
        keys = self._limits.keys() | table._limits.keys()
        changed = {key: differing for key in keys if (differing := table.changed(key, self))}
        exemptions = self._exempt ^ table._exempt
        return TableChange(self, table, quotas, dynamic, changed, exemptions, _has_group([*changed.values(), exemptions]))

    def altered(self, dynamic: DynamicQuotas) -> tuple[Self, ChangedEntities]:
        """The table with other quotas of the API. A small change of many quotas costs little."""
        table = copy(self)
        table._resolved = {}
        table._small_quotas = None
        table._exact = self._exact.copy()
        table._limits = {key: limits.copy() for key, limits in self._limits.items()}
        return table, table._alter(dynamic)

    def _alter(self, dynamic: DynamicQuotas) -> ChangedEntities:
        before, self._dynamic = self._dynamic, dynamic
        changed: list[ClientQuotaEntity] = []
        added = 0
        for entity, limits in dynamic.items():
            old = before.get(entity)
            added += old is None
            if old is not limits and old != limits:
                changed.append(entity)
        if len(before) + added > len(dynamic):
            changed += [entity for entity in before if entity not in dynamic]
        found: dict[str, set[ClientQuotaEntity]] = {}
        for entity in changed:
            short = self._short(entity)
            old, new = before.get(entity, _NO_LIMITS), dynamic.get(entity, _NO_LIMITS)
            for key in old.keys() | new.keys():
                if old.get(key) != new.get(key):
                    self._put(key, short, new.get(key))
                    found.setdefault(key, set()).add(short)
            if short is not entity and not any(short in limits for limits in self._limits.values()):
                self._exact.pop(short, None)
        return found

    def _short(self, entity: ClientQuotaEntity) -> ClientQuotaEntity:
        short = entity.shortened()
        if short is not entity:
            self._exact[short] = entity
        return short

    def _put(self, key: str, entity: ClientQuotaEntity, api: float | None) -> None:
        """Put the API's limit into effect. If that is None, put the file's."""
        limit = self._of_file.get(key, _NO_ENTITIES).get(entity) if api is None else api
        limits = self._limits.setdefault(key, {})
        if limit is not None:
            limits[entity] = QuotaLimit(bounded(limit), Source.FILE if api is None else Source.API)
            return
        limits.pop(entity, None)
        if not limits:
            del self._limits[key]

    def file_limits(self, entity: ClientQuotaEntity) -> dict[str, float]:
        """The file's own limits of an entity, by quota key. The API may override them."""
        short = entity.shortened()
        return {key: limits[short] for key, limits in self._of_file.items() if short in limits}

    def entities(self) -> dict[ClientQuotaEntity, dict[str, QuotaLimit]]:
        """The limits in effect, by entity and quota key."""
        found: dict[ClientQuotaEntity, dict[str, QuotaLimit]] = {}
        for key, limits in self._limits.items():
            for entity, limit in limits.items():
                found.setdefault(self._exact.get(entity, entity), {})[key] = limit
        return found

    def limits(self, key: str) -> Iterable[QuotaLimit]:
        """The limits in effect of one quota key."""
        return self._limits.get(key, {}).values()

    def small_quotas(self) -> dict[str, int]:
        """By kind: the number of entities with a quota so small that a mute may outlast a client's timeout."""
        if self._small_quotas is None:
            self._small_quotas = {
                name: sum([kind.full_request.outlasts_timeout(limit.per_second) for limit in self.limits(kind.config_key)])
                for name, kind in KINDS.items()
                if kind.full_request is not None
            }
        return self._small_quotas

    @property
    def keys(self) -> Set[str]:
        """The keys of the limits in effect."""
        return self._limits.keys()

    def changed(self, key: str, before: "QuotaTable") -> Set[ClientQuotaEntity]:
        """The entities whose quota `key` differs between this table and `before`."""
        old, new = before._limits.get(key, {}), self._limits.get(key, {})
        return {name for name, limit in new.items() if old.get(name) != limit} | (old.keys() - new.keys())

    def resolve(self, key: str, user: str, client_id: str) -> Resolution:
        """The quota `key` of a client.

        The first configured of the eight levels wins, as in Kafka. An exemption has its entity's level. An exemption that names
        its client also overrides a default limit of a higher level: an operator who writes both means that.

        Unlike in Kafka, an empty client-id is a client-id, so that no client escapes a default without one (KAFKA-13341).
        """
        found = self._resolved.get((key, user, client_id, None))
        if found is None:
            found = self._first(key, client_levels(user, client_id)) or Resolution(
                Tags(None, short_name(client_id)), None, None
            )
            self._remember(found, key, user, client_id)
        return found

    def exempts(self, name: str, user: str, client_id: str) -> bool:
        """True if a client is exempt from topic quotas or volume quotas (`TOPICS`, `VOLUMES`).

        No entity has a limit of these quotas that could override the exemption. So each of the eight levels can give it.
        """
        entities = self._exempt_from[name]
        if not entities:
            return False
        users: tuple[EntityName, ...] = (user, DEFAULT, None)
        client_ids: tuple[EntityName, ...] = (client_id, DEFAULT, None)
        return any(ClientQuotaEntity(one, other) in entities for one in users for other in client_ids)

    def resolve_ip(self, key: str, ip: str) -> Resolution:
        """The quota `key` of an address: its own, else the default ip's. An exemption has its entity's level."""
        found = self._resolved.get((key, None, None, ip))
        if found is None:
            tags = Tags(None, None, ip=ip)
            found = self._first(key, _levels(tags)) or Resolution(tags, None, None)
            self._remember(found, key, ip=ip)
        return found

    def resolve_group(self, key: str, group: str) -> Resolution:
        """The quota `key` of a group."""
        entity = ClientQuotaEntity(group=group)
        return self._first(key, [(entity, entity.tags)]) or Resolution(entity.tags, None, None)

    def resolve_user(self, key: str, user: str) -> Resolution:
        """The limit `key` of a whole user, which no client-id changes: its own, else the default user's."""
        found = self._resolved.get((key, user, None, None))
        if found is None:
            found = self._first(key, user_levels(user)) or Resolution(Tags(short_name(user), None), None, None)
            self._remember(found, key, user)
        return found

    def _remember(
        self, found: Resolution, key: str, user: str | None = None, client_id: str | None = None, ip: str | None = None
    ) -> None:
        """Keep a resolution, as each new connection of a client asks for the same ones. Clients choose their names."""
        if len(user or "") > MAX_NAME or len(client_id or "") > MAX_NAME:
            return
        if len(self._resolved) >= _MAX_RESOLVED:
            self._resolved.clear()
        self._resolved[key, user, client_id, ip] = found

    def again(self, key: str, bucket: Resolution) -> Resolution:
        """The quota `key` of a bucket that another table gave. Only levels that lead to the bucket's tags count."""
        tags, entity = bucket.tags, bucket.entity
        if not tags.overflow:
            return self._first(key, _levels(tags)) or Resolution(tags, None, None)
        own = self._first(key, [(entity, tags)]) if entity is not None else None
        return own or Resolution(tags, None, entity)

    def _first(self, key: str, levels: Sequence[tuple[ClientQuotaEntity, Tags]]) -> Resolution | None:
        limits = self._limits.get(key, {})
        for index, (entity, tags) in enumerate(levels):
            limit = limits.get(entity)
            if limit is None:
                if entity in self._exempt:
                    return Resolution(tags, None, entity, exempt=True, source=Source.FILE)
                continue
            if not entity.names_only:
                for later, later_tags in levels[index:]:
                    if later.names_only and later in self._exempt and later not in limits:
                        return Resolution(later_tags, None, later, exempt=True, source=Source.FILE)
            return Resolution(tags, limit.per_second, entity, source=limit.source)
        return None


@dataclass(frozen=True, slots=True)
class TableChange:
    """The step from the table `before` to the table `after`. `quotas` and `dynamic` make the table `after`.

    `limits` has the entities with another limit. `exemptions` has the entities that only one of the tables exempts. `groups` is
    True if a group is among the entities.
    """

    before: QuotaTable
    after: QuotaTable
    quotas: Sequence[EntityQuota]
    dynamic: DynamicQuotas
    limits: ChangedEntities
    exemptions: Set[ClientQuotaEntity]
    groups: bool

    def leads(self, before: QuotaTable, quotas: Sequence[EntityQuota], dynamic: DynamicQuotas) -> bool:
        """True if this is the step from `before` to a table of these quotas."""
        return self.before is before and self.quotas is quotas and self.dynamic is dynamic

    def of(self, key: str) -> Set[ClientQuotaEntity]:
        """The entities whose quota `key` or exemption differs. Their names are those of buckets."""
        return self.limits.get(key, frozenset()) | self.exemptions


def _has_group(sets: Iterable[Set[ClientQuotaEntity]]) -> bool:
    return any(entity.group is not None for entities in sets for entity in entities)


def bounded(limit: float) -> float:
    """A limit per second in the range that meters can count."""
    return min(max(limit, LEAST_LIMIT), LARGEST_LIMIT)


def client_levels(user: str, client_id: str) -> Sequence[tuple[ClientQuotaEntity, Tags]]:
    """Kafka's eight levels for a client, most specific first: the entity of each, and the tags of its bucket."""
    user, client_id = short_name(user), short_name(client_id)
    pair, whole_user = Tags(user, client_id), Tags(user, None)
    names: tuple[tuple[EntityName, Tags], ...] = ((client_id, pair), (DEFAULT, pair), (None, whole_user))
    users: tuple[EntityName, ...] = (user, DEFAULT)
    levels = [(ClientQuotaEntity(one, other), tags) for one in users for other, tags in names]
    return [*levels, *_levels(Tags(None, client_id))]


def user_levels(user: str) -> Sequence[tuple[ClientQuotaEntity, Tags]]:
    """The two levels for limits of connections, which have a user and no client-id."""
    tags = Tags(short_name(user), None)
    return [(ClientQuotaEntity(tags.user), tags), (ClientQuotaEntity(DEFAULT), tags)]


def _levels(tags: Tags) -> Sequence[tuple[ClientQuotaEntity, Tags]]:
    """The entities whose quota leads to these tags, most specific first: Kafka's eight levels, two levels of ips, a group."""
    if tags.group is not None:
        return [(ClientQuotaEntity(group=tags.group), tags)]
    if tags.ip is not None:
        return [(ClientQuotaEntity(ip=tags.ip), tags), (ClientQuotaEntity(ip=DEFAULT), tags)]
    users: tuple[EntityName, ...] = (None,) if tags.user is None else (tags.user, DEFAULT)
    client_ids: tuple[EntityName, ...] = (None,) if tags.client_id is None else (tags.client_id, DEFAULT)
    return [(ClientQuotaEntity(user, client_id), tags) for user in users for client_id in client_ids]
