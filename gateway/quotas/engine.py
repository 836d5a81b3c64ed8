"""All buckets of a gateway: looked up by a client's entity, changed live, bounded in number."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from gateway.quotas.bucket import Bucket
from gateway.quotas.debts import forgive_all
from gateway.quotas.entity import BOOTSTRAP, Resolution, Tags
from gateway.quotas.group_buckets import GroupBuckets
from gateway.quotas.group_meter import GroupMeter
from gateway.quotas.groups import NO_CLAIMS, Claims, GroupTable
from gateway.quotas.kind_buckets import KindBuckets
from gateway.quotas.kinds import KINDS, REQUEST_KEYS, QuotaKind
from gateway.quotas.kinds.produce import KIND as PRODUCE
from gateway.quotas.labels import steps_of
from gateway.quotas.meter import Meter, precharge
from gateway.quotas.new_meters import NewMeters
from gateway.quotas.owned_places import owner_of
from gateway.quotas.policy import KindTotals, follow_windows, policies_of
from gateway.quotas.quota_table import QuotaTable, TableChange
from gateway.quotas.scope import at_broker, in_scope
from gateway.quotas.settings import Metering, QuotaSettings
from gateway.quotas.shared_meter import UsageAccount, UsageKey
from gateway.quotas.snapshot import ThrottleTotals, UsageRow
from gateway.steps import Steps, at_once

MAX_BUCKETS = 10_000
"""For each kind."""


class QuotaEngine:
    """Hands out buckets. A session keeps its bucket until `generation` changes, then releases it and acquires another.

    At most `max_buckets` buckets per kind belong to owners of clients (`OwnedPlaces`). Without room, a later client shares one
    with the others of its owner and quota level (`overflowed` counts such clients). `LabelSlots` shows at most `max_labelled`
    per kind by name, and the others as one row. The meters of a `shared` engine can be charged with the use of peers
    (`quotas.sharing`). `charges_requests` is True while some client has a quota that charges figures for requests
    (`REQUEST_KEYS`). Without one, most requests need no handler.
    """

    def __init__(
        self,
        settings: QuotaSettings,
        now: float,
        *,
        max_buckets: int = MAX_BUCKETS,
        max_labelled: int = 1_000,
        shared: bool = False,
        on_forgotten: Callable[[Bucket], None] | None = None,
    ) -> None:
        """`on_forgotten` gets each bucket that is dropped."""
        self.settings = settings
        self._on_forgotten = on_forgotten
        self.meters = NewMeters(settings, shared=shared)
        self.memory = settings.longest_window
        self.generation = 0
        self.max_buckets = max_buckets
        self._overflowed = 0
        self.group_buckets = GroupBuckets(shared=shared)
        self._set_table(self._table_of(settings))
        self._table.small_quotas()  # before clients come
        self.group_buckets.follow(settings.groups, self._table)
        self.groups = GroupTable(settings.groups)
        policies = policies_of(settings, now)
        self._kept = {
            name: KindBuckets(kind, policies[name], max_labelled, now, by_broker=settings.by_broker)
            for name, kind in KINDS.items()
        }
        unlimited = Resolution(Tags(None, None), None, None)
        self.internal = Bucket(PRODUCE, unlimited, None, policies[PRODUCE.name], KindTotals(), now)
        """Measures the Produce requests that no client is charged for (`OwnTopics`); no client is throttled by it."""

    @property
    def shadows(self) -> "QuotaEngine | None":
        """The engine of shadow limits. Without one, there are no such limits."""
        return None

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
        limited: bool = False,
        behind: int = 0,
        renamed: bool = False,
    ) -> tuple[Bucket, ...]:
        """The buckets that a client's requests are charged to: its own, then its group's if the group has a limit of the kind.

        The caller gives each back with `release`. `used` is the client's recent use of another bucket: a new bucket starts with
        that use, not with a full burst. With `limited`, the path of a client without any limit is empty, and the engine keeps
        nothing of the client. An exempt client stays out of its group's limit as well. `broker` serves the client. `behind` is
        as for `GroupTable.find`. `renamed`: the client's connection has used another client-id before, see `OwnedPlaces`.
        The buckets of shadow limits are the last ones.
        """
        key = KINDS[kind].config_key
        beside = self.shadows
        shadows: tuple[Bucket, ...] = ()
        if beside is not None:
            shadows = beside.acquire_path(
                kind, user, client_id, now, ip, claims, broker=broker, used=used, behind=behind, renamed=renamed
            )
        resolution = at_broker(self._table.resolve(key, user, client_id), kind, broker, by_broker=self.settings.by_broker)
        group = None if resolution.exempt else self.groups.find(user, client_id, ip, claims, behind)
        shared = None if group is None else self.group_buckets.resolution(kind, self._table.resolve_group(key, group))
        if shared is not None and shared.limit is None:
            shared = None
        if limited and resolution.limit is None and shared is None and not shadows:
            return ()
        own = self._acquire(kind, resolution, used, now, user, ip, renamed=renamed)
        path: tuple[Bucket, ...] = (own,) if shared is None else (own, self._acquire(kind, shared, 0, now))
        return path + shadows

    def acquire_ip(self, kind: str, ip: str, now: float, broker: int = BOOTSTRAP) -> Bucket | None:
        """The bucket of an address. None if the address has no quota; then the engine keeps nothing of it."""
        return self._acquire_limited(kind, self._table.resolve_ip(KINDS[kind].config_key, ip), broker, now, "", ip)

    def acquire_user(self, kind: str, user: str, now: float, broker: int = BOOTSTRAP) -> Bucket | None:
        """The bucket of a user's connections. None if the user has no quota; then the engine keeps nothing of it."""
        return self._acquire_limited(kind, self._table.resolve_user(KINDS[kind].config_key, user), broker, now, user, "")

    def _acquire_limited(self, kind: str, resolution: Resolution, broker: int, now: float, user: str, ip: str) -> Bucket | None:
        if resolution.limit is None:
            return None
        return self._acquire(kind, at_broker(resolution, kind, broker, by_broker=self.settings.by_broker), 0, now, user, ip)

    @property
    def table(self) -> QuotaTable:
        """The limits in effect. A change makes another table."""
        return self._table

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(self._kept)

    def accounts(self) -> Iterator[tuple[UsageKey, UsageAccount]]:
        """Every bucket of a single entity. A bucket that is made or dropped during the iteration may be in it or not."""
        for kind, kept in self._kept.items():
            yield from [((kind, tags), bucket) for tags, bucket in kept.by_tags.items() if not tags.overflow]

    def changed(self) -> Iterator[tuple[UsageKey, UsageAccount] | None]:
        """The accounts whose use has not been published yet, and None after each step. The engine may be used meanwhile."""
        for kind, kept in self._kept.items():
            for part in steps_of(list(kept.by_tags.values())):
                for bucket in part:
                    if bucket.amount_total != bucket.shared_total and not bucket.resolution.tags.overflow:
                        yield (kind, bucket.resolution.tags), bucket
                yield None

    def peer_account(self, kind: str, tags: Tags | str, now: float) -> Bucket | None:
        """The bucket of the entity that a peer names by these tags. The engine makes a missing bucket, without connections.

        A client that connects later finds the bucket charged. None without a quota or room, or if the peer has another scope.
        """
        kept = self._kept.get(kind)
        if kept is None or isinstance(tags, str) or tags.overflow or not in_scope(tags, kind, by_broker=kept.by_broker):
            return None
        tags = tags.bounded()
        bucket = kept.by_tags.get(tags)
        if bucket is None and (len(kept.by_tags) < self.max_buckets or tags.group is not None):
            resolution = self._again(KINDS[kind], Resolution(tags, None, None))
            if resolution.limit is not None:
                bucket = self._create(KINDS[kind], resolution, now)
        return bucket if bucket is not None and bucket.meter is not None else None

    @property
    def overflowed(self) -> int:
        return self._overflowed

    def has_room(self, shared: Bucket, owner: str, *, renamed: bool) -> bool:
        """True if a client of that shared bucket would now get one of its own. `renamed` is as for `acquire_path`."""
        return self._kept[shared.kind.name].has_room(owner, self.max_buckets, renamed=renamed)

    def _acquire(
        self, kind: str, resolution: Resolution, used: float, now: float, user: str = "", ip: str = "", *, renamed: bool = False
    ) -> Bucket:
        bucket = self._kept[kind].by_tags.get(resolution.tags)
        if bucket is None:
            bucket = self._place(kind, resolution, used, now, owner_of(user, ip), renamed=renamed)
        bucket.connections += 1
        bucket.last_used = now
        return bucket

    def _place(
        self, kind: str, resolution: Resolution, used: float, now: float, owner: str, *, renamed: bool = False
    ) -> Bucket:
        """A new bucket, or without room the one that the owner's further clients share."""
        kept = self._kept[kind]
        tags, owner = kept.place(owner, resolution, self.max_buckets, renamed=renamed)
        if tags is not resolution.tags:
            self._overflowed += 1
            resolution = replace(resolution, tags=tags)
        bucket = kept.by_tags.get(tags)
        if bucket is None:
            bucket = self._create(KINDS[kind], resolution, now)
            bucket.owner = owner
            precharge(bucket.meter, used, now)
        return bucket

    def release(self, bucket: Bucket, now: float) -> None:
        """Give a bucket back. Raises ValueError if it was not acquired."""
        if bucket.connections <= 0:
            raise ValueError(f"bucket {bucket.resolution} was released more often than acquired")
        bucket.connections -= 1
        bucket.last_used = now

    def prepare(self, settings: QuotaSettings) -> tuple[TableChange, ...]:
        """The part of `apply` that takes long with thousands of rows. It changes nothing: a thread may call it."""
        change = self._table.followed_by(settings.quotas, settings.dynamic)
        change.after.small_quotas()
        return (change,)

    def apply(self, settings: QuotaSettings, now: float, prepared: Iterable[TableChange] = ()) -> None:
        """Change the configuration under live traffic. It takes effect on the next request: sessions see `generation` change.

        A client that keeps its bucket keeps its use. A new window keeps use and debts, a new algorithm or scope recent use.
        The engine uses a change in `prepared` only if it leads from the table in effect to these settings.
        """
        before, self.settings = self.settings, settings
        self.meters.settings = settings
        self.memory = settings.longest_window
        found = [change for change in prepared if change.leads(self._table, settings.quotas, settings.dynamic)]
        change = found[0] if found else self._table.followed_by(settings.quotas, settings.dynamic)
        self._set_table(change.after)
        regroup = settings.groups != before.groups or change.groups
        if settings.groups != before.groups:
            self.groups = GroupTable(settings.groups)
        if regroup:
            self.group_buckets.follow(settings.groups, change.after)
        if settings.by_broker != before.by_broker:
            self._follow_scope(now)
        self._follow_windows(now)
        for name, kind in KINDS.items():
            kept = self._kept[name]
            if not kept.by_tags:
                continue
            metering = before.metering_of(kind)
            same = settings.metering_of(kind) == metering
            for bucket in kept.of(change.of(kind.config_key)) if same else kept.by_tags.values():
                if bucket.resolution.tags.group is None:
                    self.meters.reconfigure(bucket, self._table.again(kind.config_key, bucket.resolution), metering, now)
            if regroup or not same:
                for bucket in self.group_buckets.in_order(name, kept.by_tags):
                    self._regroup(kind, bucket, metering, now)
        if settings.enforce and not before.enforce:
            forgive_all([bucket.meter for bucket in self.buckets()], now)  # nobody has waited for these debts
        self.recall()

    def _follow_scope(self, now: float) -> None:
        """Drop the buckets of the other scope. Sessions that hold one take its recent use to their next bucket."""
        for kept in self._kept.values():
            for bucket in kept.follow_scope(by_broker=self.settings.by_broker):
                self._drop(bucket, now)

    def _follow_windows(self, now: float) -> None:
        policies = {name: kept.policy for name, kept in self._kept.items()}
        for name, positions in follow_windows(policies, self.settings, now).items():
            self._kept[name].follow_window(policies[name], positions)

    def _set_table(self, table: QuotaTable) -> None:
        self._table = table
        self.charges_requests = not REQUEST_KEYS.isdisjoint(table.keys)
        self.rate_kinds = tuple([kind.name for kind in KINDS.values() if kind.spares_members and kind.config_key in table.keys])

    def _table_of(self, settings: QuotaSettings) -> QuotaTable:
        return QuotaTable(settings.quotas, settings.dynamic)

    def recall(self) -> None:
        """Make every session look up its buckets, and other changed settings, before its next charge."""
        self.generation += 1

    def tick(self, now: float) -> None:
        """To be called once a second: marks totals and drops idle buckets."""
        at_once(self.tick_in_steps(now))

    def tick_in_steps(self, now: float) -> Steps[None]:
        """As `tick`. The engine may be used between the steps."""
        for policy in {kept.policy for kept in self._kept.values()}:
            policy.tick(now)
        for kept in self._kept.values():
            yield from kept.tick_in_steps(self.max_buckets, self.settings.window.seconds, now, self._forget)

    def rows(self, now: float) -> Steps[list[UsageRow]]:
        """The rows of all kinds, see `KindBuckets.rows`. The engine may be used between the steps."""
        rows: list[UsageRow] = []
        for kept in self._kept.values():
            rows += yield from kept.rows(now)
        return rows

    def active_rows(self, now: float, seconds: float) -> Steps[list[UsageRow]]:
        """The rows of shown buckets with a limit that were used in the last `seconds`, or were throttled lately.

        The engine may be used between the steps.
        """
        rows: list[UsageRow] = []
        for kept in self._kept.values():
            rows += yield from kept.active_rows(now, seconds)
        return rows

    def buckets(self) -> Iterator[Bucket]:
        """Every bucket. The engine may not change meanwhile."""
        for kept in self._kept.values():
            yield from kept.by_tags.values()

    def small_quotas(self) -> dict[str, int]:
        """The number of entities, by kind, whose quota is so small that a mute may outlast a client's timeout."""
        return self._table.small_quotas()

    def throttle_totals(self) -> list[ThrottleTotals]:
        totals = {name: kept.totals for name, kept in self._kept.items()}
        return [ThrottleTotals(name, tuple(total.counts), total.seconds) for name, total in totals.items()]

    def _create(self, kind: QuotaKind, resolution: Resolution, now: float) -> Bucket:
        bucket = self._bucket(kind, resolution, now)
        self._kept[kind.name].add(bucket, now)
        self.group_buckets.add(bucket)
        return bucket

    def _bucket(self, kind: QuotaKind, resolution: Resolution, now: float) -> Bucket:
        kept = self._kept[kind.name]
        return Bucket(kind, resolution, self._meter(kind, resolution, now), kept.policy, kept.totals, now)

    def _drop(self, bucket: Bucket, now: float) -> None:
        self._kept[bucket.kind.name].drop(bucket, now)
        if self._on_forgotten is not None:
            self._on_forgotten(bucket)

    def _forget(self, bucket: Bucket, now: float) -> None:
        self._drop(bucket, now)
        bucket.forget(self._successor)

    def _successor(self, forgotten: Bucket, now: float) -> Bucket:
        """The bucket that a client of a forgotten bucket gets now."""
        kind, again = forgotten.kind.name, self._again(forgotten.kind, forgotten.resolution)
        return self._kept[kind].by_tags.get(again.tags) or self._place(kind, again, 0, now, forgotten.owner)

    def _meter(self, kind: QuotaKind, resolution: Resolution, now: float) -> Meter | None:
        if resolution.limit is None:
            return None
        tags = resolution.tags
        if tags.group is None or not self.group_buckets.in_tree(kind.name, tags.group):
            return self.meters.meter(kind.name, resolution.limit, now)
        return self.group_buckets.meter(kind, tags, self._parent(kind, tags, now), self.meters.part, now)

    def _again(self, kind: QuotaKind, resolution: Resolution) -> Resolution:
        return self.group_buckets.resolution(kind.name, self._table.again(kind.config_key, resolution))

    def _parent(self, kind: QuotaKind, tags: Tags, now: float) -> Bucket | None:
        """The bucket of the group above, made if it is missing."""
        above = self.group_buckets.parent(kind.name, tags)
        if above is None:
            return None
        return self._kept[kind.name].by_tags.get(above) or self._create(
            kind, self._again(kind, Resolution(above, None, None)), now
        )

    def _regroup(self, kind: QuotaKind, bucket: Bucket, before: Metering, now: float) -> None:
        """As `NewMeters.reconfigure`, for the bucket of a group."""
        tags = bucket.resolution.tags
        if tags.group is None or not self.group_buckets.in_tree(kind.name, tags.group):
            self.meters.reconfigure(bucket, self._table.again(kind.config_key, bucket.resolution), before, now)
            return
        bucket.resolution = self._again(kind, bucket.resolution)
        if isinstance(bucket.meter, GroupMeter):
            self.group_buckets.regroup(bucket, self._parent(kind, tags, now))
        else:
            old, bucket.meter = bucket.meter, self._meter(kind, bucket.resolution, now)
            if old is not None and isinstance(bucket.meter, GroupMeter):
                bucket.meter.take_over(old, bucket.rate_of_all(now) * bucket.policy.span, now)
            self.group_buckets.add(bucket)
