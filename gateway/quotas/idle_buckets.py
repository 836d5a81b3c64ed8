"""The idle buckets that a tick drops before their hour is over, because half of the places are taken."""

from typing import Final

from gateway.quotas.bucket import Bucket
from gateway.quotas.group_meter import GroupMeter
from gateway.quotas.usage_rows import UnnamedBuckets

NAMED_IDLE_SECONDS: Final = 120.0
"""A bucket with a name in metrics stays for that long, so that a scrape sees its last counts."""

_UNNAMED: Final = 1_000_000  # older than any bucket, in seconds
_SPARED: Final = 64


def may_be_dropped(bucket: Bucket, now: float, seconds: float) -> bool:
    """True for a full bucket without connections and without use for `seconds`. The buckets of a tree of groups stay."""
    return bucket.forgettable(now, seconds) and not isinstance(bucket.meter, GroupMeter)


class IdleBuckets:
    """The full buckets without connections of one kind, and the choice of those to drop: the least recently used ones.

    Buckets without a name in metrics go first. One with a name goes only after `NAMED_IDLE_SECONDS`, unless all places are
    taken. The choice leaves some places below the half, where further client-ids of connections find room. It counts buckets
    by seconds of age, so no step of a tick has to sort them.
    """

    __slots__ = ("_chosen", "_counts", "_crowded", "_most", "_named_seconds", "_seconds", "buckets")

    def __init__(self, taken: int, places: int, window_seconds: float) -> None:
        half = (places + 1) // 2
        self.buckets: list[Bucket] = []
        self._crowded = taken >= half
        self._most = half - 1 - places // _SPARED  # that stay, as far as there are idle ones
        self._seconds = window_seconds
        self._named_seconds = window_seconds if taken >= places else max(window_seconds, NAMED_IDLE_SECONDS)
        self._counts: dict[int, int] = {}
        self._chosen: dict[int, int] = {}

    def add(self, bucket: Bucket, now: float) -> bool:
        """Add the bucket if it may be dropped."""
        if not self._crowded or not self._may_go(bucket, now):
            return False
        age = _age(bucket, now)
        self._counts[age] = self._counts.get(age, 0) + 1
        self.buckets.append(bucket)
        return True

    def choose(self, taken: int) -> None:
        """Choose among the added buckets, for `sort_out`. `taken` is as in the constructor, but now."""
        excess = taken - self._most
        for age in sorted(self._counts, reverse=True):
            if excess <= 0:
                break
            self._chosen[age] = min(self._counts[age], excess)
            excess -= self._chosen[age]

    def sort_out(self, part: list[Bucket], rest: UnnamedBuckets, now: float) -> list[Bucket]:
        """The chosen ones of some added buckets. The others are added to `rest` if they have no name."""
        found: list[Bucket] = []
        for bucket in part:
            age = _age(bucket, now)
            left = self._chosen.get(age, 0)
            if left > 0 and self._may_go(bucket, now):  # it may be in use since it was added
                self._chosen[age] = left - 1
                found.append(bucket)
            elif not bucket.labelled:
                rest.add(bucket, now)
        return found

    def _may_go(self, bucket: Bucket, now: float) -> bool:
        seconds = self._named_seconds if bucket.labelled else self._seconds
        return may_be_dropped(bucket, now, seconds)


def _age(bucket: Bucket, now: float) -> int:
    """Seconds since the last use. Buckets without a name count as older than all others."""
    return int(now - bucket.last_used) + (0 if bucket.labelled else _UNNAMED)
