"""Who has which quota: Kafka's client quota entities and their eight levels of precedence.

A limit comes from the config file or from the quota API (AlterClientQuotas), whose value goes before the file's for the same
entity and key, as Kafka's dynamic configs do.

Source: `ClientQuotaManager.DefaultQuotaCallback.quotaMetricTags` and `quotaLimit` (KIP-13, KIP-55, KIP-546).
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Final, NamedTuple


class Default(Enum):
    """The default entity, which is not an entity that happens to be named `<default>`."""

    DEFAULT = "<default>"


DEFAULT: Final = Default.DEFAULT

OTHER: Final = "<other>"
"""What stands in place of the names of all who have no bucket or no row of their own."""

TOPIC: Final = "topic"
"""The entity type of topics, which is Weir's own."""
MAX_NAME: Final = 255
"""Characters of a name that buckets, metrics and files carry as it is. Kafka itself lets a client-id have 32 767 bytes."""

_KEPT: Final = 160
_MARK: Final = "..."
_DIGEST_BYTES: Final = 16
_SHORT: Final = _KEPT + len(_MARK) + 2 * _DIGEST_BYTES


def short_name(name: str) -> str:
    """A client's name as buckets carry it: its beginning and a hash in place of more than `MAX_NAME` characters.

    A name that looks like such a result is hashed as well, so nobody can take the bucket of a long name by its short form.
    """
    looks_short = len(name) == _SHORT and name[_KEPT : _KEPT + len(_MARK)] == _MARK
    return _hashed(name) if looks_short or len(name) > MAX_NAME else name


def _bounded(name: str | None) -> str | None:
    return name if name is None or len(name) <= MAX_NAME else _hashed(name)


def _hashed(name: str) -> str:
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{name[:_KEPT]}{_MARK}{digest}"


EntityName = str | Default | None
"""A name, the default entity, or None where the entity has no part of this type."""


class Source(Enum):
    """Where a limit comes from."""

    FILE = "file"
    API = "api"


@dataclass(frozen=True, slots=True)
class ClientQuotaEntity:
    """What a quota is configured for: a user, a client-id, a pair of them, or an ip; each by name or as the default.

    `topic` is the name of a topic whose threshold was set as its config (`quotas.topic_thresholds`); it stands alone.
    """

    user: EntityName = None
    client_id: EntityName = None
    ip: EntityName = None
    topic: EntityName = None

    def __str__(self) -> str:
        return ", ".join(f"{kind}={name.value if isinstance(name, Default) else name}" for kind, name in self.parts().items())

    def parts(self) -> dict[str, str | Default]:
        """Its names by Kafka's entity types."""
        every = (("user", self.user), ("client-id", self.client_id), ("ip", self.ip), (TOPIC, self.topic))
        return {kind: name for kind, name in every if name is not None}

    def shortened(self) -> "ClientQuotaEntity":
        """The entity by its names as buckets carry them."""
        user = short_name(self.user) if isinstance(self.user, str) else self.user
        client_id = short_name(self.client_id) if isinstance(self.client_id, str) else self.client_id
        return self if (user, client_id) == (self.user, self.client_id) else ClientQuotaEntity(user, client_id, self.ip)

    @property
    def tags(self) -> "Tags":
        """Those of the only bucket that follows from it, if no part of it is a default."""
        user, client_id, ip = (None if isinstance(name, Default) else name for name in (self.user, self.client_id, self.ip))
        return Tags(user, client_id, ip=ip)

    @property
    def names_only(self) -> bool:
        """Whether no part of it is a default."""
        return self.user is not DEFAULT and self.client_id is not DEFAULT and self.ip is not DEFAULT


@dataclass(frozen=True, slots=True)
class EntityQuota:
    """One entity of the config file: its limits by quota key (`producer_byte_rate`: bytes/s), and its exemptions.

    `exempt`: from all rates; there are no limits then. `exempt_from` lists what the file exempts the entity from, empty if the
    file says no more than true.
    """

    entity: ClientQuotaEntity
    limits: Mapping[str, float] = field(default_factory=dict)
    exempt: bool = False
    exempt_from: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.entity)


RATES: Final = "rates"
TOPICS: Final = "topics"
VOLUMES: Final = "volumes"
EXEMPTIONS: Final = (RATES, TOPICS, VOLUMES)
"""The quotas that an entity can be exempt from: those by entity, `quotas.topics` and `quotas.volumes`."""

DynamicQuotas = Mapping[ClientQuotaEntity, Mapping[str, float]]
"""What has been set through the quota API: each entity's limits by quota key, per second."""


@dataclass(frozen=True, slots=True)
class Tags:
    """What tells one bucket from another. None: the level does not look at it (Kafka's metrics show that as "", which we can't
    do: a client-id may be empty). Connections are told apart by `ip` alone, requests never by it.

    `overflow`: the bucket is no client's own, but that of all who found no room for one; its names are no client's either.
    """

    user: str | None
    client_id: str | None
    overflow: bool = False
    ip: str | None = None

    def bounded(self) -> "Tags":
        """The same with short names: an older gateway or its file may tell of long ones."""
        if len(self.user or "") <= MAX_NAME and len(self.client_id or "") <= MAX_NAME:
            return self
        return Tags(_bounded(self.user), _bounded(self.client_id), self.overflow, self.ip)

    @property
    def shown(self) -> tuple[str, str]:
        """The user and the client-id as metrics and tables name them.

        Anybody may call himself `<other>`: such a name gets a backslash in front, so that it is not taken for the others.
        """
        if self.overflow:
            return self.user or "", self.client_id or ""
        return _told_apart(self.user or ""), _told_apart(self.client_id or "")


@dataclass(frozen=True, slots=True)
class Resolution:
    """The quota that applies to a client: its bucket's tags, the limit per second (None: unlimited) and where it is from.

    `source` is None where nothing is configured.
    """

    tags: Tags
    limit: float | None
    entity: ClientQuotaEntity | None
    exempt: bool = False
    source: Source | None = None


class Limit(NamedTuple):
    """One limit per second, and who has set it."""

    per_second: float
    source: Source


class QuotaTable:
    """All configured entities: the file's `quotas`, and what the quota API has set. Immutable: a change makes a new table.

    An entity that the file exempts is exempt from every quota but those that the API gives it.
    """

    def __init__(self, quotas: Iterable[EntityQuota] = (), dynamic: DynamicQuotas | None = None) -> None:
        self._limits: dict[str, dict[ClientQuotaEntity, Limit]] = {}  # by their names as buckets carry them
        self._exact: dict[ClientQuotaEntity, ClientQuotaEntity] = {}  # those that have longer ones
        file = list(quotas)
        self._exempt = {quota.entity for quota in file if quota.exempt}
        self._exempt_from = {
            name: frozenset([quota.entity for quota in file if name in quota.exempt_from]) for name in (TOPICS, VOLUMES)
        }
        for quota in file:
            if quota.entity not in self._exempt:
                self._set(quota.entity, quota.limits, Source.FILE)
        for entity, limits in (dynamic or {}).items():
            self._set(entity, limits, Source.API)
        self._exempt = {entity.shortened() for entity in self._exempt}

    def _set(self, entity: ClientQuotaEntity, limits: Mapping[str, float], source: Source) -> None:
        short = entity.shortened()
        if short is not entity:
            self._exact[short] = entity
        for key, limit in limits.items():
            self._limits.setdefault(key, {})[short] = Limit(limit, source)

    def entities(self) -> dict[ClientQuotaEntity, dict[str, Limit]]:
        """What is in effect: the limits of each entity that has any, by quota key."""
        found: dict[ClientQuotaEntity, dict[str, Limit]] = {}
        for key, limits in self._limits.items():
            for entity, limit in limits.items():
                found.setdefault(self._exact.get(entity, entity), {})[key] = limit
        return found

    def changed(self, key: str, before: "QuotaTable") -> Set[ClientQuotaEntity]:
        """The entities whose quota `key` or exemption is not that of another table."""
        old, new = before._limits.get(key, {}), self._limits.get(key, {})
        return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)} | (before._exempt ^ self._exempt)

    def resolve(self, key: str, user: str, client_id: str) -> Resolution:
        """The quota `key` of a client.

        The first configured of the eight levels wins, as in Kafka. An exemption stands at its entity's own level; besides, one
        that names its client beats a limit that is some default's, for that is what an operator means who writes both.

        Unlike Kafka, an empty client-id is a client-id like any other, so that nobody escapes a default by sending none
        (KAFKA-13341).
        """
        user, client_id = short_name(user), short_name(client_id)
        pair, whole_user, whole_client = Tags(user, client_id), Tags(user, None), Tags(None, client_id)
        levels = [
            (ClientQuotaEntity(user_name, client_name), tags)
            for user_name in (user, DEFAULT)
            for client_name, tags in ((client_id, pair), (DEFAULT, pair), (None, whole_user))
        ]
        levels += _levels(whole_client)
        return self._first(key, levels) or Resolution(whole_client, None, None)

    def exempts(self, name: str, user: str, client_id: str) -> bool:
        """Return True if a client is exempt from topic quotas or volume quotas (`TOPICS`, `VOLUMES`).

        No entity has a limit of this kind that could go first, so each of the client's eight levels can give the exemption.
        """
        entities = self._exempt_from[name]
        if not entities:
            return False
        users: tuple[EntityName, ...] = (user, DEFAULT, None)
        client_ids: tuple[EntityName, ...] = (client_id, DEFAULT, None)
        return any(ClientQuotaEntity(one, other) in entities for one in users for other in client_ids)

    def resolve_ip(self, key: str, ip: str) -> Resolution:
        """The quota `key` of an address: its own, else the default ip's; an exemption stands at its entity's own level."""
        tags = Tags(None, None, ip=ip)
        return self._first(key, _levels(tags)) or Resolution(tags, None, None)

    def again(self, key: str, bucket: Resolution) -> Resolution:
        """The quota `key` of a bucket that another table gave: its levels are those that lead to its tags."""
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


def _levels(tags: Tags) -> Sequence[tuple[ClientQuotaEntity, Tags]]:
    """The entities whose quota gives a client these tags, most specific first: Kafka's eight levels, and two of ips."""
    if tags.ip is not None:
        return [(ClientQuotaEntity(ip=tags.ip), tags), (ClientQuotaEntity(ip=DEFAULT), tags)]
    users: tuple[EntityName, ...] = (None,) if tags.user is None else (tags.user, DEFAULT)
    client_ids: tuple[EntityName, ...] = (None,) if tags.client_id is None else (tags.client_id, DEFAULT)
    return [(ClientQuotaEntity(user, client_id), tags) for user in users for client_id in client_ids]


def _told_apart(name: str) -> str:
    return "\\" + name if name.lstrip("\\") == OTHER else name
