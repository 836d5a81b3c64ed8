"""Recent use of meters: taken from one engine and put into the next one, so that a restart gives nobody a free burst.

The time between the two processes counts as for any bucket, which refills meanwhile. `seconds_between` finds this time by the
clocks of possibly two machines.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gateway.quotas.bucket import Bucket
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import Tags
from gateway.quotas.kinds import KINDS
from gateway.quotas.meter import Meter, PastUse, Window, carry_over
from gateway.quotas.settings import Metering
from gateway.quotas.shadows import SHADOW, ShadowBucket
from gateway.quotas.shared_meter import UsageKey

LONGEST_SECONDS: Final = 86_400.0
"""A longer difference, forward or backward, means that a clock was set, or that the use is too old to matter."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment by the clocks of a process: `monotonic` seconds mean something within one `boot` of a machine ("": unknown)."""

    boot: str
    monotonic: float
    wall: float


def seconds_between(saved: Moment, now: Moment) -> float | None:
    """Return the seconds since the save, at least 0.0; None if the clocks are not plausible."""
    same_boot = saved.boot == now.boot != ""
    passed = now.monotonic - saved.monotonic if same_boot else now.wall - saved.wall
    return max(passed, 0.0) if abs(passed) <= LONGEST_SECONDS else None


@dataclass(frozen=True, slots=True)
class RecentUse:
    """The use that a meter of this `metering` and `limit` (per second) still counts."""

    limit: float
    metering: Metering
    used: tuple[PastUse, ...]

    def aged(self, seconds: float) -> "RecentUse":
        """Return the same use, as it is `seconds` later."""
        return replace(self, used=_aged(self.used, seconds))


@dataclass(frozen=True, slots=True)
class BucketUse:
    """The recent use of one quota kind by one bucket."""

    kind: str
    tags: Tags
    use: RecentUse


@dataclass(frozen=True, slots=True)
class TopicRateUse:
    """The use that a topic's rate still counts, by the rule `meter` and `window`; the name None stands for all topics together.

    `elsewhere` is the use through other gateways. `broker`: at this broker alone, as in `Tags`.
    """

    name: str | None
    meter: str
    window: Window
    here: tuple[PastUse, ...]
    elsewhere: tuple[PastUse, ...] = ()
    broker: int | None = None

    def aged(self, seconds: float) -> "TopicRateUse":
        """Return the same use, as it is `seconds` later."""
        return replace(self, here=_aged(self.here, seconds), elsewhere=_aged(self.elsewhere, seconds))


@dataclass(frozen=True, slots=True)
class PeerTotals:
    """The last message that this gateway has charged of a peer: its sequence number, and the totals up to it."""

    identity: str
    sequence: int
    totals: Mapping[UsageKey, int]


def _aged(used: Iterable[PastUse], seconds: float) -> tuple[PastUse, ...]:
    return tuple(PastUse(each.began + seconds, each.ended + seconds, each.amount) for each in used)


def recent_use(kind: str, meter: Meter | None, engine: QuotaEngine, now: float) -> RecentUse | None:
    """Return the use that a meter still counts, None if there is none."""
    if meter is None or meter.idle(now):
        return None
    used = tuple(meter.dump(now))
    if not used:  # a full bucket that still remembers presumed use of peers
        return None
    return RecentUse(meter.limit, engine.settings.metering_of(KINDS[kind]), used)


def entity_uses(engine: QuotaEngine, buckets: Iterable[Bucket], now: float) -> Iterator[BucketUse]:
    """Return the use of the buckets, without the buckets that several clients share."""
    for bucket in buckets:
        if bucket.resolution.tags.overflow:
            continue
        use = recent_use(bucket.kind.name, bucket.meter, engine, now)
        if use is not None:
            prefix = SHADOW if isinstance(bucket, ShadowBucket) else ""
            yield BucketUse(prefix + bucket.kind.name, bucket.resolution.tags, use)


def restore_entity(engine: QuotaEngine, saved: BucketUse, now: float) -> bool:
    """Put use into the bucket of the same tags, made if it is missing. Return False if the client has no quota any more."""
    bucket = engine.peer_account(saved.kind, saved.tags, now)
    if bucket is None or bucket.meter is None:
        return False
    restore_meter(bucket.meter, bucket.kind.name, saved.use, engine, now)
    return True


def restore_meter(meter: Meter, kind: str, use: RecentUse, engine: QuotaEngine, now: float) -> None:
    """Put use into a new meter.

    A changed config takes effect as if it had changed while the gateway ran. Another limit or window keeps use and debts.
    Another algorithm keeps the use, but no debt.
    """
    metering, limit = engine.settings.metering_of(KINDS[kind]), meter.limit
    if use.metering == metering:
        meter.set_limit(use.limit, now)
        meter.restore(use.used, now)
        meter.set_limit(limit, now)
        return
    new_meter = KINDS[kind].meters.get(use.metering.algorithm)
    if new_meter is None:
        return
    before = new_meter(use.limit, use.metering.window, now)
    before.restore(use.used, now)
    if use.metering.algorithm == metering.algorithm:
        before.set_limit(limit, now)
        carry_over(before, meter, now)
        return
    used = sum(each.amount for each in before.dump(now))
    meter.charge(min(max(used, 0.0), meter.capacity), now)
