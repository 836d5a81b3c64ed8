"""Shadow limits: measured like quotas beside the real ones, and never enforced.

They show how often a limit would have throttled its clients, and for how long. Each throttle is counted as if the client had
waited for it (`StretchedMeter`). docs/decisions/030-shadow-limits.md explains the figures.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Final, Self

from gateway.quotas.bucket import Bucket, QuotaVerdict
from gateway.quotas.engine import MAX_BUCKETS, QuotaEngine
from gateway.quotas.entity import BOOTSTRAP, OTHER, ClientQuotaEntity, DynamicQuotas, EntityQuota, Resolution, Source, Tags
from gateway.quotas.groups import NO_CLAIMS, Claims
from gateway.quotas.kinds import KINDS, QuotaKind
from gateway.quotas.meter import Meter
from gateway.quotas.new_meters import NewMeters
from gateway.quotas.policy import KindTotals, Policy
from gateway.quotas.quota_table import ChangedEntities, QuotaLimit, QuotaTable, TableChange
from gateway.quotas.scope import at_broker
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.shared_meter import SharedMeter, UsageAccount, UsageKey
from gateway.quotas.snapshot import UsageRow
from gateway.quotas.stretched_meter import StretchedMeter
from gateway.steps import Steps

SHADOW: Final = "shadow_"
"""In messages and files of use, the kind of a shadow limit is its quota kind behind this prefix."""


class ShadowTable(QuotaTable):
    """The shadow limits laid over the real ones. A real limit that is more specific than a shadow limit overrides it.

    So a client has a shadow limit if that limit would hold for the client as a real one.
    """

    def __init__(self, quotas: Iterable[EntityQuota] = (), dynamic: DynamicQuotas | None = None) -> None:
        rows = list(quotas)
        self._shadows: dict[str, dict[ClientQuotaEntity, float]] = {}
        for row in rows:
            for key, limit in row.shadow.items():
                self._shadows.setdefault(key, {})[row.entity.shortened()] = limit
        if self._shadows:
            super().__init__(rows, dynamic)
        else:
            super().__init__()  # nobody asks for real limits alone
        self._rows = quotas
        for key, limits in self._shadows.items():
            for entity in limits:
                self._put(key, entity, None)

    def altered(self, dynamic: DynamicQuotas) -> tuple[Self, ChangedEntities]:
        return super().altered(dynamic) if self._shadows else (self, {})

    def _put(self, key: str, entity: ClientQuotaEntity, api: float | None) -> None:
        """A shadow limit overrides the real limit of its own entity."""
        shadow = self._shadows.get(key, {}).get(entity)
        if shadow is None:
            super()._put(key, entity, api)
        else:
            self._limits.setdefault(key, {})[entity] = QuotaLimit(shadow, Source.FILE)

    @property
    def keys(self) -> Set[str]:
        return self._shadows.keys()

    def of(self, key: str) -> Set[ClientQuotaEntity]:
        """The entities with a shadow limit of this key."""
        return self._shadows.get(key, {}).keys()

    def changed(self, key: str, before: QuotaTable) -> Set[ClientQuotaEntity]:
        old: Set[ClientQuotaEntity] = before.of(key) if isinstance(before, ShadowTable) else frozenset()
        return super().changed(key, before) | (old ^ self.of(key))

    def _first(self, key: str, levels: Sequence[tuple[ClientQuotaEntity, Tags]]) -> Resolution | None:
        found = super()._first(key, levels)
        return None if found is None or (not found.exempt and found.entity not in self.of(key)) else found


class ShadowBucket(Bucket):
    """`longest` is the longest throttle time since the last sample for the ledger."""

    __slots__ = ("longest",)

    def __init__(
        self, kind: QuotaKind, resolution: Resolution, meter: Meter | None, policy: Policy, totals: KindTotals, now: float
    ) -> None:
        super().__init__(kind, resolution, meter, policy, totals, now)
        self.longest = 0.0

    def shared_meter(self) -> SharedMeter | None:
        """None: nobody waits for the limit, so the use of peers is charged once it is known, and is never presumed."""
        return None

    def _verdict(self, meter: Meter, delay: float, now: float) -> QuotaVerdict:
        delay, enforced = super()._verdict(meter, delay, now)
        self.longest = max(self.longest, delay)
        return delay, enforced


def _measured_alone(settings: QuotaSettings) -> QuotaSettings:
    """The settings without enforcement and without parents: a shadow limit of a group is a ceiling that is not divided."""
    return replace(settings, enforce=False, groups=tuple([replace(group, parent=None) for group in settings.groups]))


def _parents(settings: QuotaSettings) -> dict[str, str]:
    return {group.name: group.parent for group in settings.groups if group.parent is not None}


class _StretchedMeters(NewMeters):
    def _alone(self, kind: str, limit: float, now: float) -> Meter:
        return StretchedMeter(super()._alone(kind, limit, now), limit)


class ShadowEngine(QuotaEngine):
    """The buckets of shadow limits. An enforced limit of the same client has its own bucket in the main engine.

    Gateways share this use as they share the main engine's, under kinds with the prefix `SHADOW`.
    """

    def __init__(
        self,
        settings: QuotaSettings,
        now: float,
        *,
        max_buckets: int = MAX_BUCKETS,
        shared: bool = False,
        on_forgotten: Callable[[Bucket], None] | None = None,
    ) -> None:
        self._above = _parents(settings)
        self._groups = settings.groups  # with their parents
        super().__init__(_measured_alone(settings), now, max_buckets=max_buckets, shared=shared, on_forgotten=on_forgotten)
        self.meters = _StretchedMeters(self.settings, shared=shared)

    def apply(self, settings: QuotaSettings, now: float, prepared: Iterable[TableChange] = ()) -> None:
        if settings.groups == self._groups:
            alone = replace(settings, enforce=False, groups=self.settings.groups)
        else:
            alone = _measured_alone(settings)
            self._above, self._groups = _parents(settings), settings.groups
        super().apply(alone, now, prepared)

    def acquire_path(
        self,
        kind: str,
        user: str,
        client_id: str,
        now: float,
        ip: str = "",
        claims: Claims = NO_CLAIMS,
        *,
        broker: int = BOOTSTRAP,
        used: float = 0,
        limited: bool = False,  # noqa: ARG002 -- the path never has buckets without a limit
        behind: int = 0,
        renamed: bool = False,
    ) -> tuple[Bucket, ...]:
        """The buckets of the client, of its group and of the groups above that have a shadow limit."""
        key = KINDS[kind].config_key
        if key not in self._table.keys:
            return ()
        own = at_broker(self._table.resolve(key, user, client_id), kind, broker, by_broker=self.settings.by_broker)
        # The annotation is for mypyc, which would infer a tuple of at most one bucket.
        path: tuple[Bucket, ...] = (
            () if own.limit is None else (self._acquire(kind, own, used, now, user, ip, renamed=renamed),)
        )
        group = None if own.exempt else self.groups.find(user, client_id, ip, claims, behind)
        while group is not None:
            shared = self._table.resolve_group(key, group)
            if shared.limit is not None:
                path = (*path, self._acquire(kind, shared, 0, now))
            group = self._above.get(group)
        return path

    def rows(self, now: float) -> Steps[list[UsageRow]]:
        """Without the buckets whose shadow limit was removed."""
        return _as_shadows(super().rows(now))

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset([SHADOW + name for name in KINDS])

    def accounts(self) -> Iterator[tuple[UsageKey, UsageAccount]]:
        return map(_as_shadow, super().accounts())

    def changed(self) -> Iterator[tuple[UsageKey, UsageAccount] | None]:
        return map(_as_shadow_or_none, super().changed())

    def peer_account(self, kind: str, tags: Tags | str, now: float) -> Bucket | None:
        return super().peer_account(kind.removeprefix(SHADOW), tags, now)

    def _table_of(self, settings: QuotaSettings) -> QuotaTable:
        return ShadowTable(settings.quotas, settings.dynamic)

    def _bucket(self, kind: QuotaKind, resolution: Resolution, now: float) -> Bucket:
        kept = self._kept[kind.name]
        return ShadowBucket(kind, resolution, self._meter(kind, resolution, now), kept.policy, kept.totals, now)


class EngineWithShadows(QuotaEngine):
    """The engine of a gateway: paths of clients, and snapshots, end with the buckets of shadow limits.

    All else that it returns is about the other buckets.
    """

    def __init__(
        self,
        settings: QuotaSettings,
        now: float,
        *,
        max_buckets: int = MAX_BUCKETS,
        shared: bool = False,
        on_forgotten: Callable[[Bucket], None] | None = None,
        on_shadow_forgotten: Callable[[Bucket], None] | None = None,
    ) -> None:
        self._shadows: Final = ShadowEngine(
            settings, now, max_buckets=max_buckets, shared=shared, on_forgotten=on_shadow_forgotten
        )
        super().__init__(settings, now, max_buckets=max_buckets, shared=shared, on_forgotten=on_forgotten)
        self.shadows.groups = self.groups  # so that a client's group is found once

    @property
    def shadows(self) -> ShadowEngine:
        return self._shadows

    def has_room(self, shared: Bucket, owner: str, *, renamed: bool) -> bool:
        if isinstance(shared, ShadowBucket):
            return self.shadows.has_room(shared, owner, renamed=renamed)
        return super().has_room(shared, owner, renamed=renamed)

    @property
    def overflowed(self) -> int:
        return self._overflowed + self.shadows.overflowed

    def prepare(self, settings: QuotaSettings) -> tuple[TableChange, ...]:
        return (*super().prepare(settings), *self.shadows.prepare(settings))

    def apply(self, settings: QuotaSettings, now: float, prepared: Iterable[TableChange] = ()) -> None:
        self.shadows.max_buckets = self.max_buckets
        self.shadows.apply(settings, now, prepared)
        super().apply(settings, now, prepared)
        self.shadows.groups = self.groups

    def rows(self, now: float) -> Steps[list[UsageRow]]:
        return _both(super().rows(now), self.shadows.rows(now))

    def tick_in_steps(self, now: float) -> Steps[None]:
        return _one_after_the_other(super().tick_in_steps(now), self.shadows.tick_in_steps(now))

    def _set_table(self, table: QuotaTable) -> None:
        super()._set_table(table)
        if self.shadows.charges_requests:
            self.charges_requests = True
        # A member's heartbeats are as free under a shadow limit as under a real one.
        self.rate_kinds = tuple(dict.fromkeys([*self.rate_kinds, *self.shadows.rate_kinds]))


def _as_shadow(found: tuple[UsageKey, UsageAccount]) -> tuple[UsageKey, UsageAccount]:
    (kind, tags), account = found
    return (SHADOW + kind, tags), account


def _as_shadow_or_none(found: tuple[UsageKey, UsageAccount] | None) -> tuple[UsageKey, UsageAccount] | None:
    return None if found is None else _as_shadow(found)


def _as_shadows(steps: Steps[list[UsageRow]]) -> Steps[list[UsageRow]]:
    found: list[UsageRow] = []
    for row in (yield from steps):
        if row.limit is not None or row.user == OTHER:
            found.append(replace(row, shadow=True))
            yield
    return found


def _both(first: Steps[list[UsageRow]], second: Steps[list[UsageRow]]) -> Steps[list[UsageRow]]:
    rows = yield from first
    return rows + (yield from second)


def _one_after_the_other(first: Steps[None], second: Steps[None]) -> Steps[None]:
    yield from first
    yield from second
