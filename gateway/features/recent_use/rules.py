"""What was used lately, taken from one engine's buckets and put into another's, so that a restart is no free burst.

Time between the two passes here as it does for a bucket: refilled is what would have been refilled. Which time that is, two
clocks have to tell that may belong to two machines: `seconds_between`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gateway.quotas.bucket import Bucket
from gateway.quotas.engine import Metering, QuotaEngine
from gateway.quotas.entity import Tags
from gateway.quotas.kinds import KINDS
from gateway.quotas.meter import Meter, PastUse, carry_over

LONGEST_SECONDS: Final = 86_400.0
"""A difference of time beyond this, one way or the other, is a clock that was set, or so long ago that nothing matters."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment by the clocks of a process: `monotonic` seconds mean something within one `boot` of a machine ("": unknown)."""

    boot: str
    monotonic: float
    wall: float


def seconds_between(saved: Moment, now: Moment) -> float | None:
    """How long ago something was saved, at least 0.0; None where the clocks say nothing that can be believed."""
    same_boot = saved.boot == now.boot != ""
    passed = now.monotonic - saved.monotonic if same_boot else now.wall - saved.wall
    return max(passed, 0.0) if abs(passed) <= LONGEST_SECONDS else None


@dataclass(frozen=True, slots=True)
class RecentUse:
    """What a meter of this `metering` and `limit` (per second) still remembers."""

    limit: float
    metering: Metering
    spent: tuple[PastUse, ...]

    def aged(self, seconds: float) -> "RecentUse":
        """The same, so much later."""
        later = tuple(PastUse(each.began + seconds, each.ended + seconds, each.amount) for each in self.spent)
        return RecentUse(self.limit, self.metering, later)


@dataclass(frozen=True, slots=True)
class EntityUse:
    """The recent use of one quota kind by one bucket."""

    kind: str
    tags: Tags
    use: RecentUse


def recent_use(kind: str, meter: Meter | None, limit: float | None, engine: QuotaEngine, now: float) -> RecentUse | None:
    """What a meter remembers; None where that is nothing."""
    if meter is None or limit is None or meter.idle(now):
        return None
    return RecentUse(limit, engine.settings.metering_of(KINDS[kind]), tuple(meter.dump(now)))


def entity_uses(engine: QuotaEngine, buckets: Iterable[Bucket], now: float) -> Iterator[EntityUse]:
    """What the buckets remember that are one client's own."""
    for bucket in buckets:
        if bucket.resolution.tags.overflow:
            continue
        use = recent_use(bucket.kind.name, bucket.meter, bucket.resolution.limit, engine, now)
        if use is not None:
            yield EntityUse(bucket.kind.name, bucket.resolution.tags, use)


def restore_entity(engine: QuotaEngine, saved: EntityUse, now: float) -> bool:
    """Put it into the bucket of the same tags, made if it is missing. False where there is no quota for it any more."""
    bucket = engine.peer_account(saved.kind, saved.tags, now)
    if bucket is None or bucket.meter is None or bucket.resolution.limit is None:
        return False
    restore_meter(bucket.meter, saved.kind, bucket.resolution.limit, saved.use, engine, now)
    return True


def restore_meter(meter: Meter, kind: str, limit: float, use: RecentUse, engine: QuotaEngine, now: float) -> None:
    """Have a new meter of this `limit` remember it.

    What is configured otherwise now takes effect as if it had been changed while the gateway ran: with another limit or window
    use and debts are kept, with another algorithm use is taken off, but leaves no debt.
    """
    metering = engine.settings.metering_of(KINDS[kind])
    if use.metering == metering:
        meter.set_limit(use.limit, now)
        meter.restore(use.spent, now)
        meter.set_limit(limit, now)
        return
    new_meter = KINDS[kind].meters.get(use.metering.algorithm)
    if new_meter is None:
        return
    before = new_meter(use.limit, use.metering.window, now)
    before.restore(use.spent, now)
    if use.metering.algorithm == metering.algorithm:
        before.set_limit(limit, now)
        carry_over(before, meter, now)
        return
    used = sum(each.amount for each in before.dump(now))
    meter.charge(min(max(used, 0.0), meter.capacity), now)
