"""Label slots: the buckets of one kind that metrics and tables show by name.

Clients choose their names, so each new name may cost Prometheus new series. Slots are therefore handed out at a limited rate.
"""

from collections.abc import Iterator
from math import inf
from typing import Final

from gateway.quotas.bucket import Bucket
from gateway.quotas.entity import Tags
from gateway.quotas.snapshot import Tally, UsageRow
from gateway.quotas.usage_rows import add_growth, usage_row
from gateway.steps import Steps

REFILL_SECONDS: Final = 3_600.0
"""The time in which as many new names get a slot as there are slots."""

STEP_BUCKETS: Final = 16
"""The buckets that one step of a tick or of a scrape reads."""


def steps_of(buckets: list[Bucket]) -> Iterator[list[Bucket]]:
    """The buckets of each step. The list is emptied: to free thousands of dropped buckets in one moment would take long."""
    buckets.reverse()
    while buckets:
        part = buckets[-STEP_BUCKETS:]
        del buckets[-STEP_BUCKETS:]
        part.reverse()
        yield part


class LabelSlots:
    """At most `most` buckets. If no slot is free, a configured entity takes the slot of another client.

    A client that comes back within `REFILL_SECONDS` after it lost its slot is no new name. So many of them are remembered as
    there are slots.

    `gone` has the counters of buckets that were dropped without a slot, or before they got one. `rest` is the row of all
    buckets without a slot, as of the last tick; None before.
    """

    __slots__ = ("_credit", "_most", "_others", "_past", "_refilled", "buckets", "gone", "rest")

    def __init__(self, most: int, now: float) -> None:
        self.gone = Tally()
        self.rest: UsageRow | None = None
        self.buckets: dict[Bucket, None] = {}  # in the order of their slots
        self._others: dict[Bucket, None] = {}  # of clients that the configuration does not name
        self._past: dict[Tags, float] = {}  # the names that lost their slots, and when; the latest last
        self._most = most
        self._credit = float(most)
        self._refilled = now

    def grant(self, bucket: Bucket, now: float) -> bool:
        """Give the bucket a slot if its entity is configured, or if a slot is free and the rate allows a new name."""
        if bucket.resolution.tags.overflow:
            return False
        if bucket.resolution.configured:
            if len(self.buckets) >= self._most and not self._make_room(now):
                return False
        else:
            if len(self.buckets) >= self._most or not (self._is_known(bucket, now) or self._pay(now)):
                return False
            self._others[bucket] = None
        self._past.pop(bucket.resolution.tags, None)
        self.buckets[bucket] = None
        bucket.labelled = True
        return True

    def _is_known(self, bucket: Bucket, now: float) -> bool:
        return now - self._past.get(bucket.resolution.tags, -inf) <= REFILL_SECONDS

    def _pay(self, now: float) -> bool:
        """Pay for a new name."""
        self._credit = min(self._most, self._credit + (now - self._refilled) * self._most / REFILL_SECONDS)
        self._refilled = now
        if self._credit < 1.0:
            return False
        self._credit -= 1.0
        return True

    def promote(self, bucket: Bucket, now: float) -> bool:
        """As `grant`, for a bucket that was shown among the others: its counts so far move to `gone`, which stays there."""
        if not (bucket.connections or bucket.resolution.configured) or not self.grant(bucket, now):
            return False
        add_growth(self.gone, bucket)
        bucket.shown_before = bucket.tally()
        return True

    def drop(self, bucket: Bucket, now: float) -> None:
        """Forget a bucket. Without a slot, its counters move to `gone`."""
        if bucket.labelled:
            self.take(bucket, now)
        else:
            add_growth(self.gone, bucket)

    def take(self, bucket: Bucket, now: float) -> None:
        """Take the bucket's slot. Its counters so far stay under its name; later growth counts for the unnamed buckets."""
        del self.buckets[bucket]
        self._others.pop(bucket, None)
        tags = bucket.resolution.tags
        self._past.pop(tags, None)
        self._past[tags] = now
        if len(self._past) > self._most:
            del self._past[next(iter(self._past))]
        bucket.labelled = False
        bucket.shown_before = bucket.tally()

    def active_rows(self, now: float, seconds: float) -> Steps[list[UsageRow]]:
        """The rows of buckets with a limit that were used in the last `seconds`, or were throttled lately."""
        named = list(self.buckets)
        rows: list[UsageRow] = []
        for part in steps_of(named):
            rows += [
                usage_row(bucket, now)
                for bucket in part
                if bucket.meter is not None and (now - bucket.last_used <= seconds or bucket.episode.seconds(now) is not None)
            ]
            yield
        return rows

    def _make_room(self, now: float) -> bool:
        """Take the least recently used slot of an entity that is not configured."""
        if not self._others:
            return False
        self.take(min(self._others, key=lambda bucket: (bucket.connections > 0, bucket.last_used)), now)
        return True
