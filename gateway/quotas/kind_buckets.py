"""The buckets of one kind: found by their tags, bounded in number, ticked, and shown in rows."""

from collections.abc import Callable, Iterable, Set

from gateway.quotas.bucket import Bucket
from gateway.quotas.entity import ClientQuotaEntity, Resolution, Tags
from gateway.quotas.idle_buckets import IdleBuckets, may_be_dropped
from gateway.quotas.kinds import QuotaKind
from gateway.quotas.labels import LabelSlots, steps_of
from gateway.quotas.owned_places import OwnedPlaces
from gateway.quotas.policy import KindTotals, Policy
from gateway.quotas.scope import buckets_of, in_scope
from gateway.quotas.snapshot import UsageRow
from gateway.quotas.usage_rows import UnnamedBuckets, usage_row
from gateway.steps import Steps

BUCKET_IDLE_SECONDS = 3600.0
"""A tick drops a bucket that was unused for that long, as Kafka does."""


class KindBuckets:
    """The engine makes the buckets, and `add` keeps them. All buckets of the kind share `policy` and `totals`.

    `by_broker`: each broker has buckets of its own.
    """

    __slots__ = ("_kind", "_places", "_slots", "by_broker", "by_tags", "policy", "totals")

    def __init__(self, kind: QuotaKind, policy: Policy, max_labelled: int, now: float, *, by_broker: bool) -> None:
        self._kind = kind
        self.policy = policy
        self.totals = KindTotals()
        self.by_broker = by_broker
        self.by_tags: dict[Tags, Bucket] = {}
        self._places = OwnedPlaces()
        self._slots = LabelSlots(max_labelled, now)

    def has_room(self, owner: str, places: int, *, renamed: bool) -> bool:
        """As `OwnedPlaces.has_room`."""
        return self._places.has_room(owner, len(self.by_tags), places, renamed=renamed)

    def place(self, owner: str, quota: Resolution, places: int, *, renamed: bool) -> tuple[Tags, str]:
        """As `OwnedPlaces.place`."""
        return self._places.place(owner, quota, self.by_tags, places, renamed=renamed)

    def add(self, bucket: Bucket, now: float) -> None:
        self.by_tags[bucket.resolution.tags] = bucket
        self._slots.grant(bucket, now)

    def drop(self, bucket: Bucket, now: float) -> None:
        del self.by_tags[bucket.resolution.tags]
        self._places.give_back(bucket.owner)
        self._slots.drop(bucket, now)

    def follow_scope(self, *, by_broker: bool) -> list[Bucket]:
        """Follow another scope. Returns the buckets that no client can have in it; the caller drops them."""
        self.by_broker = by_broker
        return [bucket for tags, bucket in self.by_tags.items() if not in_scope(tags, self._kind.name, by_broker=by_broker)]

    def follow_window(self, policy: Policy, kept: list[int]) -> None:
        """Follow the policy of another quota window. `kept` are the positions of the marks that stay."""
        self.policy = policy
        for bucket in self.by_tags.values():
            bucket.rebind(policy, kept)

    def of(self, entities: Set[ClientQuotaEntity]) -> Iterable[Bucket]:
        """The buckets that may have the quota of one of these entities."""
        return buckets_of(self.by_tags, entities, by_broker=self.by_broker)

    def tick_in_steps(
        self, places: int, window_seconds: float, now: float, forget: Callable[[Bucket, float], None]
    ) -> Steps[None]:
        """Mark the totals, hand out label slots, and `forget` idle buckets. The buckets may be used between the steps."""
        slots, rest = self._slots, UnnamedBuckets()
        if not self.by_tags and slots.rest is None:
            return
        marking, by_broker = self.policy.marking, self.by_broker
        idle = IdleBuckets(len(self.by_tags), places, window_seconds)
        for part in steps_of(list(self.by_tags.values())):
            for bucket in part:
                if by_broker != self.by_broker and self.by_tags.get(bucket.resolution.tags) is not bucket:
                    continue  # a reload has dropped it since the first step
                bucket.tick(now, marking=marking)
                if may_be_dropped(bucket, now, BUCKET_IDLE_SECONDS):
                    forget(bucket, now)
                    continue
                unnamed = not bucket.labelled and not slots.promote(bucket, now)
                if not idle.add(bucket, now) and unnamed:
                    rest.add(bucket, now)
            yield
        idle.choose(len(self.by_tags))
        for part in steps_of(idle.buckets):
            if by_broker != self.by_broker:
                break  # as above
            for bucket in idle.sort_out(part, rest, now):
                forget(bucket, now)
            yield
        if by_broker == self.by_broker:  # otherwise dropped buckets would count twice: in `rest` and in `gone`
            slots.rest = rest.row(self._kind, slots.gone)

    def rows(self, now: float) -> Steps[list[UsageRow]]:
        """A row for each bucket with a label slot, and one row for all others, as of the last tick.

        Before the first tick, the first step sums the others up.
        """
        slots = self._slots
        other, named = slots.rest, list(slots.buckets)
        unnamed = len(self.by_tags) - len(named)
        if other is None and (unnamed or slots.gone.amount):
            rest = UnnamedBuckets()
            for bucket in self.by_tags.values():
                if not bucket.labelled:
                    rest.add(bucket, now)
            other = rest.row(self._kind, slots.gone)
        rows: list[UsageRow] = []
        for part in steps_of(named):
            rows += [usage_row(bucket, now) for bucket in part]
            yield
        if other is not None and (unnamed or other.amount_total):
            rows.append(other)
        return rows

    def active_rows(self, now: float, seconds: float) -> Steps[list[UsageRow]]:
        """As `LabelSlots.active_rows`."""
        return self._slots.active_rows(now, seconds)
