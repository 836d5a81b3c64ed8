"""Kafka's client quota entities, their quotas in the config file, and the tags of their buckets.

Source: `ClientQuotaEntity` and `ClientQuotaManager.DefaultQuotaCallback.quotaMetricTags` (KIP-13, KIP-55, KIP-546).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import blake2b
from typing import Final

from gateway.quotas.schedule import When


class Default(Enum):
    """The default entity. A client named `<default>` is another entity."""

    DEFAULT = "<default>"


DEFAULT: Final = Default.DEFAULT

ANONYMOUS: Final = "ANONYMOUS"
"""Kafka's name of the principal of a connection that has not authenticated."""

OTHER: Final = "<other>"
"""The name that stands for all clients without a bucket or row of their own."""

TOPIC: Final = "topic"
"""The entity type of topics. Kafka has no such type."""

GROUP: Final = "group"
"""The entity type of groups of clients (`quotas.groups`). Kafka has no such type."""

MAX_NAME: Final = 255
"""The longest name, in characters, that buckets, metrics and files keep unchanged. Kafka allows a client-id of 32 767 bytes."""

_KEPT: Final = 160
_MARK: Final = "..."
_DIGEST_BYTES: Final = 16
_SHORT: Final = _KEPT + len(_MARK) + 2 * _DIGEST_BYTES


def short_name(name: str) -> str:
    """A client's name in buckets: the beginning and a hash of a name of more than `MAX_NAME` characters.

    A name that looks like such a result is hashed as well. So no client gets the bucket of a long name by its short form.
    """
    looks_short = len(name) == _SHORT and name[_KEPT : _KEPT + len(_MARK)] == _MARK
    return _hashed(name) if looks_short or len(name) > MAX_NAME else name


def _bounded(name: str | None) -> str | None:
    return name if name is None or len(name) <= MAX_NAME else _hashed(name)


def _hashed(name: str) -> str:
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{name[:_KEPT]}{_MARK}{digest}"


EntityName = str | Default | None
"""A name, the default entity, or None if the entity has no part of this type."""


class Source(Enum):
    """The origin of a limit."""

    FILE = "file"
    API = "api"


@dataclass(frozen=True, slots=True)
class ClientQuotaEntity:
    """A user, a client-id, a pair of them, or an ip; each by name or as the default.

    `topic` is a topic with a threshold in its topic config, `group` a group of clients. Such an entity has no other part.
    """

    user: EntityName = None
    client_id: EntityName = None
    ip: EntityName = None
    topic: EntityName = None
    group: EntityName = None

    def __str__(self) -> str:
        return ", ".join(f"{kind}={name}" for kind, name in self.file_names().items())

    def parts(self) -> dict[str, str | Default]:
        """The names by Kafka's entity types."""
        every = (
            ("user", self.user), ("client-id", self.client_id), ("ip", self.ip), (TOPIC, self.topic), (GROUP, self.group),
        )  # fmt: skip
        return {kind: name for kind, name in every if name is not None}

    def file_names(self) -> dict[str, str]:
        """The names by type as the config file has them, with `<default>` for the default."""
        return {kind: name.value if isinstance(name, Default) else name for kind, name in self.parts().items()}

    def kafka_names(self) -> dict[str, str | None]:
        """The names by type as Kafka's quota API has them, with None for the default."""
        return {kind: None if isinstance(name, Default) else name for kind, name in self.parts().items()}

    def shortened(self) -> "ClientQuotaEntity":
        """The entity with the names of buckets, see `short_name`."""
        user = short_name(self.user) if isinstance(self.user, str) else self.user
        client_id = short_name(self.client_id) if isinstance(self.client_id, str) else self.client_id
        return self if (user, client_id) == (self.user, self.client_id) else ClientQuotaEntity(user, client_id)

    @property
    def tags(self) -> "Tags":
        """The tags of the entity's only bucket. An entity with a default part has many buckets."""
        names = (self.user, self.client_id, self.ip, self.group)
        user, client_id, ip, group = (None if isinstance(name, Default) else name for name in names)
        return Tags(user, client_id, ip=ip, group=group)

    @property
    def names_only(self) -> bool:
        """True if no part is a default."""
        return self.user is not DEFAULT and self.client_id is not DEFAULT and self.ip is not DEFAULT


@dataclass(frozen=True, slots=True)
class EntityQuota:
    """One entity of the config file: its limits by quota key (`producer_byte_rate`: bytes/s), and its exemptions.

    `exempt`: from all rates; there are no limits then. `exempt_from`: the list in the file, empty if the file says `true`.
    `line` of the file, from 1; None if unknown. A row that only moved to another line is equal to the row before.
    `when`: the time in which the row counts; None: always. `shadow`: limits that are measured and delay nobody.
    """

    entity: ClientQuotaEntity
    limits: Mapping[str, float] = field(default_factory=dict)
    exempt: bool = False
    exempt_from: tuple[str, ...] = ()
    line: int | None = field(default=None, compare=False)
    when: When | None = None
    shadow: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.entity)

    @property
    def identity(self) -> ClientQuotaEntity:
        return self.entity


MAX_CONNECTIONS: Final = "max_connections"
"""The key of a user's limit on open connections. It is a number and no rate, so it has no quota kind and no bucket."""

RATES: Final = "rates"
TOPICS: Final = "topics"
VOLUMES: Final = "volumes"
EXEMPTIONS: Final = (RATES, TOPICS, VOLUMES)
"""The quotas that an entity can be exempt from: quotas of entities, `quotas.topics` and `quotas.volumes`."""

BOOTSTRAP: Final = -1
"""In place of a broker's node id: the connections to a bootstrap port. The gateway does not know which broker serves them."""

DynamicQuotas = Mapping[ClientQuotaEntity, Mapping[str, float]]
"""The quota API's limits per second, by entity and quota key."""


TAG_NAMES: Final = ("user", "client_id", "ip", "group", "broker")
"""The fields of `Tags` that messages and files name."""


@dataclass(frozen=True, slots=True)
class Tags:
    """The key of a bucket: Kafka's metric tags.

    None: the quota's level ignores the name. (Kafka's metrics have "" instead, but a client-id may be empty.) Connections have
    an `ip` only, requests never have one. `overflow`: the bucket of all clients that found no room for their own, or of those
    of one `owner` (`owner_of`). The bucket of a group has the `group` only. `broker`: the node id of the only broker that the
    bucket is for, or `BOOTSTRAP`; None: all.
    """

    user: str | None
    client_id: str | None
    overflow: bool = False
    ip: str | None = None
    group: str | None = None
    broker: int | None = None
    owner: str = ""

    def __hash__(self) -> int:  # compiled, unlike the one that `dataclass` makes
        return hash((self.user, self.client_id, self.overflow, self.ip, self.group, self.broker, self.owner))

    def bounded(self) -> "Tags":
        """The tags with short names. Messages and files of an older gateway may have long names."""
        if len(self.user or "") <= MAX_NAME and len(self.client_id or "") <= MAX_NAME:
            return self
        return replace(self, user=_bounded(self.user), client_id=_bounded(self.client_id))

    @property
    def broker_text(self) -> str:
        """The broker in metrics and tables: its node id, `bootstrap`, or "" for a bucket of all brokers."""
        return "" if self.broker is None else "bootstrap" if self.broker == BOOTSTRAP else str(self.broker)

    @property
    def shown(self) -> tuple[str, str]:
        """The user and the client-id in metrics and tables.

        A client may have the name `<other>`. A backslash in front tells it apart from the unnamed clients.
        """
        if self.overflow:
            return self.user or "", self.client_id or ""
        return _told_apart(self.user or ""), _told_apart(self.client_id or "")


@dataclass(frozen=True, slots=True)
class Resolution:
    """The quota of a client: the tags of its bucket, the limit per second (None: unlimited), the limit's entity and source.

    `source` is None if nothing is configured.
    """

    tags: Tags
    limit: float | None
    entity: ClientQuotaEntity | None
    exempt: bool = False
    source: Source | None = None

    @property
    def configured(self) -> bool:
        """True if the quota or the exemption belongs to one bucket alone."""
        return self.entity is not None and self.entity.names_only


def _told_apart(name: str) -> str:
    return "\\" + name if name.lstrip("\\") == OTHER else name
