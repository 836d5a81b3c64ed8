"""All buckets of a gateway: looked up by a client's entity, changed live, bounded in number."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from gateway.quotas.bucket import Bucket
from gateway.quotas.debts import forgive_all
from gateway.quotas.entity import BOOTSTRAP, Resolution, Tags
from gateway.quotas.group_buckets import GroupBuckets
from gateway.quotas.group_meter import GroupMeter
from gateway.quotas.groups import NO_CLAIMS, Claims, GroupTable
from gateway.quotas.idle_buckets import IdleBuckets, may_be_dropped
from gateway.quotas.kinds import KINDS, REQUEST_KEYS, QuotaKind
from gateway.quotas.kinds.produce import KIND as PRODUCE
from gateway.quotas.labels import LabelSlots, UnnamedBuckets, shown_rows, steps_of
from gateway.quotas.meter import Meter, precharge
from gateway.quotas.new_meters import NewMeters
from gateway.quotas.policy import KindTotals, follow_windows, policies_of
from gateway.quotas.quota_table import QuotaTable, TableChange
from gateway.quotas.scope import at_broker, buckets_of, in_scope, overflow_tags
from gateway.quotas.settings import Metering as Metering
from gateway.quotas.settings import QuotaSettings as QuotaSettings
from gateway.quotas.shared_meter import UsageAccount, UsageKey
from gateway.quotas.snapshot import ThrottleTotals, UsageRow
from gateway.steps import Steps, at_once

BUCKET_IDLE_SECONDS = 3600.0
"""The engine drops a bucket that was unused for that long, as Kafka does."""

MAX_BUCKETS = 10_000
"""For each kind."""


class QuotaEngine:
    """Hands out buckets. A session keeps its bucket until `generation` changes, then releases it and acquires another.

    At most `max_buckets` buckets per kind exist. Until there is room, a later client shares one bucket with the others of its
    quota level (`overflowed` counts such clients). At most `max_labelled` per kind are shown by name (`LabelSlots`), the others
    as one row. The meters of a `shared` engine can be charged with the use of peers (`quotas.sharing`). `charges_requests` is
    True while some client has a quota that charges figures for requests (`REQUEST_KEYS`). Without one, most requests need no
    handler.
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
        self.generation = self._overflowed = 0
        self.max_buckets = max_buckets
        self._policies = policies_of(settings, now)
        self.group_buckets = GroupBuckets(shared=shared)
        self._set_table(self._table_of(settings))
        self._table.small_quotas()  # before clients come
        self.group_buckets.follow(settings.groups, self._table)
        self.groups = GroupTable(settings.groups)
        self._buckets: dict[str, dict[Tags, Bucket]] = {name: {} for name in KINDS}
        self._labelled = {name: LabelSlots(max_labelled, now) for name in KINDS}
        self._totals = {name: KindTotals() for name in KINDS}
        self.internal = Bucket(
            PRODUCE, Resolution(Tags(None, None), None, None), None, self._policies[PRODUCE.name], KindTotals(), now
        )
        """Measures the Produce requests that no client is charged for (`OwnTopics`); no client is throttled by it."""

    def acquire(self, kind: str, user: str, client_id: str, now: float, *, used: float = 0) -> Bucket:
        """The bucket of a client. The caller gives it back with `release`.

        `used` is the client's recent use of another bucket. A new bucket starts with that use, not with a full burst.
        """
        return self._acquire(kind, self._table.resolve(KINDS[kind].config_key, user, client_id), used, now)

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

        `used` is as for `acquire`. With `limited`, the path of a client without any limit is empty, and the engine keeps
        nothing of the client. An exempt client stays out of its group's limit as well. `broker` serves the client. `behind` is
        as for `GroupTable.find`. `renamed`: the client's connection has used another client-id before, see `_is_full`.
        """
        key = KINDS[kind].config_key
        resolution = at_broker(self._table.resolve(key, user, client_id), kind, broker, by_broker=self.settings.by_broker)
        group = None if resolution.exempt else self.groups.find(user, client_id, ip, claims, behind)
        shared = None if group is None else self.group_buckets.resolution(kind, self._table.resolve_group(key, group))
        if shared is None or shared.limit is None:
            if limited and resolution.limit is None:
                return ()
            return (self._acquire(kind, resolution, used, now, renamed=renamed),)
        return self._acquire(kind, resolution, used, now, renamed=renamed), self._acquire(kind, shared, 0, now)

    def acquire_ip(self, kind: str, ip: str, now: float, broker: int = BOOTSTRAP) -> Bucket | None:
        """The bucket of an address. None if the address has no quota; then the engine keeps nothing of it."""
        return self._acquire_limited(kind, self._table.resolve_ip(KINDS[kind].config_key, ip), broker, now)

    def acquire_user(self, kind: str, user: str, now: float, broker: int = BOOTSTRAP) -> Bucket | None:
        """The bucket of a user's connections. None if the user has no quota; then the engine keeps nothing of it."""
        return self._acquire_limited(kind, self._table.resolve_user(KINDS[kind].config_key, user), broker, now)

    def _acquire_limited(self, kind: str, resolution: Resolution, broker: int, now: float) -> Bucket | None:
        if resolution.limit is None:
            return None
        return self._acquire(kind, at_broker(resolution, kind, broker, by_broker=self.settings.by_broker), 0, now)

    @property
    def table(self) -> QuotaTable:
        """The limits in effect. A change makes another table."""
        return self._table

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(self._buckets)

    def accounts(self) -> Iterator[tuple[UsageKey, UsageAccount]]:
        """Every bucket of a single entity. A bucket that is made or dropped during the iteration may be in it or not."""
        for kind, buckets in self._buckets.items():
            for tags, bucket in list(buckets.items()):
                if not tags.overflow:
                    yield (kind, tags), bucket

    def changed(self) -> Iterator[tuple[UsageKey, UsageAccount] | None]:
        """The accounts whose use has not been published yet, and None after each step. The engine may be used meanwhile."""
        for kind, buckets in self._buckets.items():
            for part in steps_of(list(buckets.values())):
                for bucket in part:
                    if bucket.amount_total != bucket.shared_total and not bucket.resolution.tags.overflow:
                        yield (kind, bucket.resolution.tags), bucket
                yield None

    def peer_account(self, kind: str, tags: Tags | str, now: float) -> Bucket | None:
        """The bucket of the entity that a peer names by these tags. The engine makes a missing bucket, without connections.

        A client that connects later finds the bucket charged. None if the entity has no quota here, if there is no room, or if
        the peer has another scope.
        """
        buckets = self._buckets.get(kind)
        if buckets is None or isinstance(tags, str) or tags.overflow:
            return None
        if not in_scope(tags, kind, by_broker=self.settings.by_broker):
            return None
        tags = tags.bounded()
        bucket = buckets.get(tags)
        if bucket is None and (len(buckets) < self.max_buckets or tags.group is not None):
            resolution = self._again(KINDS[kind], Resolution(tags, None, None))
            if resolution.limit is not None:
                bucket = self._create(KINDS[kind], resolution, now)
        return bucket if bucket is not None and bucket.meter is not None else None

    @property
    def overflowed(self) -> int:
        return self._overflowed

    def has_room(self, shared: Bucket, *, renamed: bool) -> bool:
        """True if a client of that shared bucket would now get one of its own. `renamed` is as for `acquire_path`."""
        return not self._is_full(shared.kind.name, renamed=renamed)

    def _is_full(self, kind: str, *, renamed: bool) -> bool:
        # Half of the places are for first client-ids: a connection with ever new ones could take all places.
        return len(self._buckets[kind]) >= ((self.max_buckets + 1) // 2 if renamed else self.max_buckets)

    def _acquire(self, kind: str, resolution: Resolution, used: float, now: float, *, renamed: bool = False) -> Bucket:
        buckets = self._buckets[kind]
        bucket = buckets.get(resolution.tags)
        # The config bounds the number of groups, and a group without its own bucket could not be shared.
        if bucket is None and self._is_full(kind, renamed=renamed) and resolution.tags.group is None:
            self._overflowed += 1
            resolution = replace(resolution, tags=overflow_tags(resolution.entity, resolution.tags.broker))
            bucket = buckets.get(resolution.tags)
        if bucket is None:
            bucket = self._create(KINDS[kind], resolution, now)
            precharge(bucket.meter, used, now)
        bucket.connections += 1
        bucket.last_used = now
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
            self._drop_misplaced(now)
        for name, kept in follow_windows(self._policies, settings, now).items():
            for bucket in self._buckets[name].values():
                bucket.rebind(self._policies[name], kept)
        for name, kind in KINDS.items():
            if not self._buckets[name]:
                continue
            metering, after = before.metering_of(kind), settings.metering_of(kind)
            same = after == metering
            buckets, changed = self._buckets[name], change.of(kind.config_key)
            for bucket in buckets_of(buckets, changed, by_broker=settings.by_broker) if same else buckets.values():
                if bucket.resolution.tags.group is None:
                    self.meters.reconfigure(bucket, self._table.again(kind.config_key, bucket.resolution), metering, now)
            if regroup or not same:
                for bucket in self.group_buckets.in_order(name, self._buckets[name]):
                    self._regroup(kind, bucket, metering, now)
        if settings.enforce and not before.enforce:
            forgive_all([bucket.meter for bucket in self.buckets()], now)  # nobody has waited for these debts
        self.recall()

    def _drop_misplaced(self, now: float) -> None:
        """Drop the buckets of the other scope. Sessions that hold one take its recent use to their next bucket."""
        for name, buckets in self._buckets.items():
            for tags, bucket in list(buckets.items()):
                if not in_scope(tags, name, by_broker=self.settings.by_broker):
                    self._drop(name, bucket, now)

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
        for policy in set(self._policies.values()):
            policy.tick(now)
        for name, buckets in self._buckets.items():
            slots, rest = self._labelled[name], UnnamedBuckets()
            if not buckets and slots.rest is None:
                continue
            marking, by_broker = self._policies[name].marking, self.settings.by_broker
            idle = IdleBuckets(len(buckets), self.max_buckets, self.settings.window.seconds)
            for part in steps_of(list(buckets.values())):
                for bucket in part:
                    if by_broker != self.settings.by_broker and buckets.get(bucket.resolution.tags) is not bucket:
                        continue  # a reload has dropped it since the first step
                    bucket.tick(now, marking=marking)
                    if may_be_dropped(bucket, now, BUCKET_IDLE_SECONDS):
                        self._forget(name, bucket, now)
                        continue
                    unnamed = not bucket.labelled and not slots.promote(bucket, now)
                    if not idle.add(bucket, now) and unnamed:
                        rest.add(bucket, now)
                yield
            idle.choose(len(buckets))
            for part in steps_of(idle.buckets):
                if by_broker != self.settings.by_broker:
                    break  # as above
                for bucket in idle.sort_out(part, rest, now):
                    self._forget(name, bucket, now)
                yield
            if by_broker == self.settings.by_broker:  # otherwise dropped buckets would count twice: in `rest` and in `gone`
                slots.rest = rest.row(KINDS[name], slots.gone)

    def snapshot(self, now: float) -> list[UsageRow]:
        return at_once(self.rows(now))

    def rows(self, now: float) -> Steps[list[UsageRow]]:
        """A row for each bucket with a label slot, and one row per kind for all others, as of the last tick.

        The engine may be used between the steps.
        """
        rows: list[UsageRow] = []
        for name, buckets in self._buckets.items():
            rows += yield from shown_rows(KINDS[name], buckets.values(), self._labelled[name], now)
        return rows

    def active_rows(self, now: float, seconds: float) -> Steps[list[UsageRow]]:
        """The rows of shown buckets with a limit that were used in the last `seconds`, or were throttled lately.

        The engine may be used between the steps.
        """
        rows: list[UsageRow] = []
        for slots in self._labelled.values():
            rows += yield from slots.active_rows(now, seconds)
        return rows

    def buckets(self) -> Iterator[Bucket]:
        """Every bucket. The engine may not change meanwhile."""
        for buckets in self._buckets.values():
            yield from buckets.values()

    def small_quotas(self) -> dict[str, int]:
        """The number of entities, by kind, whose quota is so small that a mute may outlast a client's timeout."""
        return self._table.small_quotas()

    def throttle_totals(self) -> list[ThrottleTotals]:
        return [ThrottleTotals(name, tuple(total.buckets), total.seconds) for name, total in self._totals.items()]

    def _create(self, kind: QuotaKind, resolution: Resolution, now: float) -> Bucket:
        bucket = self._bucket(kind, resolution, now)
        self._buckets[kind.name][resolution.tags] = bucket
        self.group_buckets.add(bucket)
        self._labelled[kind.name].grant(bucket, now)
        return bucket

    def _bucket(self, kind: QuotaKind, resolution: Resolution, now: float) -> Bucket:
        meter = self._meter(kind, resolution, now)
        return Bucket(kind, resolution, meter, self._policies[kind.name], self._totals[kind.name], now)

    def _drop(self, kind: str, bucket: Bucket, now: float) -> None:
        del self._buckets[kind][bucket.resolution.tags]
        if self._on_forgotten is not None:
            self._on_forgotten(bucket)
        self._labelled[kind].drop(bucket, now)

    def _forget(self, kind: str, bucket: Bucket, now: float) -> None:
        self._drop(kind, bucket, now)
        bucket.forget(self._successor)

    def _successor(self, forgotten: Bucket, now: float) -> Bucket:
        """The bucket that a client of a forgotten bucket gets now."""
        bucket = self._acquire(forgotten.kind.name, self._again(forgotten.kind, forgotten.resolution), 0, now)
        self.release(bucket, now)
        return bucket

    def _meter(self, kind: QuotaKind, resolution: Resolution, now: float) -> Meter | None:
        if resolution.limit is None:
            return None
        tags = resolution.tags
        if tags.group is None or not self.group_buckets.shares(kind.name, tags.group):
            return self.meters.meter(kind.name, resolution.limit, now)
        return self.group_buckets.meter(kind, tags, self._parent(kind, tags, now), self.meters.share, now)

    def _again(self, kind: QuotaKind, resolution: Resolution) -> Resolution:
        return self.group_buckets.resolution(kind.name, self._table.again(kind.config_key, resolution))

    def _parent(self, kind: QuotaKind, tags: Tags, now: float) -> Bucket | None:
        """The bucket of the group above, made if it is missing."""
        above = self.group_buckets.parent(kind.name, tags)
        if above is None:
            return None
        return self._buckets[kind.name].get(above) or self._create(kind, self._again(kind, Resolution(above, None, None)), now)

    def _regroup(self, kind: QuotaKind, bucket: Bucket, before: Metering, now: float) -> None:
        """As `NewMeters.reconfigure`, for the bucket of a group."""
        tags = bucket.resolution.tags
        if tags.group is None or not self.group_buckets.shares(kind.name, tags.group):
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
