"""The quotas of FILE, and the bucket that each entity of the ledger would have had. Needs no PySpark."""

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from gateway.config.load import load_quotas
from gateway.features.client_quotas.feature import quota_settings
from gateway.quotas.bucket import LEAST_DELAY
from gateway.quotas.entity import DEFAULT, OTHER, ClientQuotaEntity, EntityName, Resolution, Tags
from gateway.quotas.group_tree import lineage
from gateway.quotas.groups import NO_CLAIMS, Group, GroupRule, GroupTable
from gateway.quotas.kinds import KINDS, QuotaKind
from gateway.quotas.quota_table import QuotaTable
from gateway.quotas.settings import QuotaSettings


class LedgerEntity(NamedTuple):
    """The names of a row. A name is None if the quota of that time did not look at it."""

    kind: str
    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    group: str | None = None


LIMITED: Final = "limited"
UNLIMITED: Final = "unlimited"
UNDECIDED: Final = "undecided"

SHORTEST_DELAY: Final = LEAST_DELAY
"""Seconds. The gateway throttles nobody for less."""

_ALGORITHM: Final = "token_bucket"
_GROUP: Final = "group"
_OF_NOBODY: Final = "\x00"
"""No client has this name: it stands for the clients that no row names."""
_NO_RANK: Final = 9


@dataclass(frozen=True, slots=True)
class Target:
    """A bucket of the other quotas. `limit` (units per second), `burst` (units) and `quota` are None without a limit.

    `verdict` is `UNDECIDED` if the ledger lacks a name that the other quotas look at. Then the names are the ledger's.
    """

    kind: str
    user: str | None
    client_id: str | None
    ip: str | None
    group: str | None
    verdict: str
    quota: str | None = None
    limit: float | None = None
    burst: float | None = None


class WhatIfQuotas:
    """The quotas of a file, and `warnings` about valid but doubtful keys."""

    def __init__(self, settings: QuotaSettings, warnings: Sequence[str] = ()) -> None:
        self.warnings = warnings
        self._settings = settings
        self._table = QuotaTable(settings.quotas)
        parents = {group.name: group.parent for group in settings.groups}
        self._groups = [
            (lineage(group.name, parents), [_RuleMatch(rule) for rule in group.rules])
            for group in settings.groups
            if group.rules  # a parent has none: its clients are those of the groups below
        ]
        exempt = [quota.entity for quota in settings.quotas if quota.exempt]
        limits = self._table.entities()
        self._matches = {
            key: _Matches([entity for entity, of in limits.items() if key in of], exempt) for key in self._table.keys
        }

    def targets(self, entities: Sequence[LedgerEntity]) -> Sequence[Sequence[Target]]:
        """The buckets of each entity of the ledger: its own, its group's, and those of the groups above, if they have limits.

        There are none for a kind without a rate. Nor are there any for a group of the ledger: its members have its use in rows
        of their own.
        """
        apart = _Apart(entities)
        return [[] if entity.group is not None else self._targets(entity, apart) for entity in entities]

    def _targets(self, entity: LedgerEntity, apart: "_Apart") -> Sequence[Target]:
        kind = KINDS.get(entity.kind)
        if kind is None:
            return []
        matches = self._matches.get(kind.config_key)
        if matches is None:
            return [Target(*entity, UNLIMITED)]
        if entity.ip is not None:
            return [self._limited(entity, kind, self._table.resolve_ip(kind.config_key, entity.ip))]
        if "ip" in kind.entity_types and entity.user not in (None, OTHER):  # connections, whose client-id nobody looks at
            return [self._limited(entity, kind, self._table.resolve_user(kind.config_key, _name(entity.user)))]
        user, client_id = (None, None) if entity.user == OTHER else (entity.user, entity.client_id)
        resolution = self._table.resolve(kind.config_key, _name(user), _name(client_id))
        unknown = user is None and client_id is None and matches.of_clients
        if user is None and client_id is not None:
            unknown = matches.look_at_user(client_id, apart.users[kind.name])
        elif user is not None and client_id is None:
            unknown = matches.look_at_client(user, resolution.entity, apart.client_ids[kind.name, user])
        if unknown:
            own = Target(*entity, UNDECIDED)
        elif resolution.exempt:
            return [self._limited(entity, kind, resolution)]  # the client is exempt from its group's limit as well
        else:
            own = self._limited(entity, kind, resolution)
        return [own, *self._group_targets(entity, kind, user, client_id)]

    def _group_targets(
        self, entity: LedgerEntity, kind: QuotaKind, user: str | None, client_id: str | None
    ) -> Sequence[Target]:
        """The buckets with a limit of the first group with a rule that matches, and of the groups above it."""
        doubtful = False
        for names, rules in self._groups:
            found = {rule.matches(user, client_id) for rule in rules}
            if found == {False}:
                continue
            ceilings = [self._table.resolve_group(kind.config_key, name) for name in names]
            limited = [ceiling for ceiling in ceilings if ceiling.limit is not None]
            if not limited:
                if True in found:
                    return []
                doubtful = True
            elif True in found and not doubtful:
                return [self._limited(entity, kind, ceiling) for ceiling in limited]
            else:
                return [Target(*entity, UNDECIDED, _text(limited[0].entity))]
        return []

    def _limited(self, entity: LedgerEntity, kind: QuotaKind, resolution: Resolution) -> Target:
        tags: Tags = resolution.tags
        quota = _text(resolution.entity)
        if resolution.limit is None:
            return Target(*entity, UNLIMITED, quota)
        # Kafka's algorithms allow the same burst as the token bucket, so all are replayed as one.
        burst = kind.meters[_ALGORITHM](resolution.limit, self._settings.metering_of(kind).window, 0.0).capacity
        names = (tags.user, tags.client_id, tags.ip, tags.group)
        return Target(kind.name, *names, LIMITED, quota, float(resolution.limit), burst)


class _RuleMatch:
    """A rule of a group, for clients whose address, claims and maybe names the ledger lacks."""

    def __init__(self, rule: GroupRule) -> None:
        self._names = [(pattern, _pattern(pattern)) for pattern in (rule.user, rule.client_id)]
        self._always_known = not rule.claims and rule.network is None and rule.max_lag is None

    def matches(self, user: str | None, client_id: str | None) -> bool | None:
        """None if the missing names decide."""
        known: bool | None = True if self._always_known else None
        for (pattern, names), name in zip(self._names, (user, client_id), strict=True):
            if pattern is None or not pattern.strip("*"):
                continue
            if name is None:
                known = None
            elif not names.find(name, "", "", NO_CLAIMS):
                return False
        return known


def _pattern(pattern: str | None) -> GroupTable:
    """The gateway's own comparison of one name with a pattern, by a group with one rule."""
    return GroupTable((Group(_GROUP, (GroupRule(user=pattern),)),))


class _Apart:
    """The names that the ledger tells apart: rows without a user are not of a user who has rows of his own."""

    def __init__(self, entities: Iterable[LedgerEntity]) -> None:
        self.users: dict[str, set[EntityName]] = defaultdict(set)
        self.client_ids: dict[tuple[str, str], set[EntityName]] = defaultdict(set)
        for kind, user, client_id, *_ in entities:
            if user is not None:
                self.users[kind].add(user)
                if client_id is not None:
                    self.client_ids[kind, user].add(client_id)


class _Matches:
    """The entities with a limit of one kind, or with an exemption: do they look at a name that the ledger lacks?"""

    def __init__(self, limited: Sequence[ClientQuotaEntity], exempt: Sequence[ClientQuotaEntity]) -> None:
        self.of_clients = any(entity.ip is None and entity.group is None for entity in (*limited, *exempt))
        self._users: dict[EntityName, set[EntityName]] = defaultdict(set)
        self._client_ids: dict[EntityName, dict[EntityName, int]] = defaultdict(dict)
        for entity in (*limited, *exempt):
            if entity.user is not None:
                self._users[entity.client_id].add(entity.user)
            if entity.client_id is not None:
                self._client_ids[entity.user][entity.client_id] = _rank(entity)
        self._exempt = {entity.user for entity in exempt if entity.client_id is not None and entity.names_only}

    def look_at_user(self, client_id: str, apart: Set[EntityName]) -> bool:
        """True if the quota of this client-id may depend on the user. Such an entity precedes every other."""
        return any(not users <= apart for name in (client_id, DEFAULT, None) if (users := self._users.get(name)))

    def look_at_client(self, user: str, found: ClientQuotaEntity | None, apart: Set[EntityName]) -> bool:
        """True if the quota of this user may depend on the client-id. `found` is that of a client-id without a row."""
        last = _NO_RANK if found is None else _rank(found)
        for name in (user, DEFAULT, None):
            ranks = self._client_ids.get(name, {})
            if any(rank <= last and client_id not in apart for client_id, rank in ranks.items()):
                return True
        # An exemption that names its client overrides a default limit.
        return found is not None and not found.names_only and not self._exempt.isdisjoint((user, None))


def _rank(entity: ClientQuotaEntity) -> int:
    """The place in Kafka's eight levels, 0 for the most specific."""
    user, client_id = (2 if name is None else 1 if name is DEFAULT else 0 for name in (entity.user, entity.client_id))
    return 3 * user + client_id


def _name(name: str | None) -> str:
    return _OF_NOBODY if name is None else name


def _text(entity: ClientQuotaEntity | None) -> str | None:
    return None if entity is None else str(entity)


def load_what_if(path: Path) -> WhatIfQuotas:
    """Raises ConfigError with all problems of the file."""
    config = load_quotas(path, "--what-if")
    # The report answers for enforced quotas, so `enforce: false` is no mistake here.
    warnings = [line for line in config.warnings() if line.startswith("quotas.") and not line.startswith("quotas.enforce:")]
    lasting = config.quotas.lasting()
    if left_out := len(config.quotas.rows) - len(lasting.rows):
        warnings.append(
            f"quotas: rows with until or schedule are left out of the prediction ({left_out}) — remove the key to include a row"
        )
    settings = quota_settings(lasting)
    if settings.by_broker:
        warnings.append(
            "quotas.scope: is broker, but each limit is compared with the use at all brokers — give the limits of all brokers"
        )
    return WhatIfQuotas(settings, warnings)
