"""Label slots: which buckets of one kind metrics and tables show by name.

Clients choose their names, so each new name may cost Prometheus new series. Slots are therefore handed out at a limited rate.
"""

from typing import Final

from gateway.quotas.bucket import Bucket

REFILL_SECONDS: Final = 3_600.0
"""The time in which as many names can be shown anew as there are slots."""


class LabelSlots:
    """At most `most` buckets. A configured entity takes the slot of another client where there is none left."""

    __slots__ = ("_credit", "_most", "_refilled", "buckets")

    def __init__(self, most: int, now: float) -> None:
        self.buckets: dict[Bucket, bool] = {}  # in the order of their slots; True: of a configured entity
        self._most = most
        self._credit = float(most)
        self._refilled = now

    def grant(self, bucket: Bucket, now: float) -> bool:
        """Show the bucket by name if it has a configured entity of its own, or if there is a slot and it is time for another
        name."""
        if bucket.resolution.tags.overflow:
            return False
        if bucket.configured:
            if len(self.buckets) >= self._most and not self._make_room():
                return False
        else:
            self._credit = min(self._most, self._credit + (now - self._refilled) * self._most / REFILL_SECONDS)
            self._refilled = now
            if len(self.buckets) >= self._most or self._credit < 1.0:
                return False
            self._credit -= 1.0
        self.buckets[bucket] = bucket.configured
        bucket.labelled = True
        return True

    def take(self, bucket: Bucket) -> None:
        """Show the bucket among the others from now on; what it was shown with does not count there."""
        del self.buckets[bucket]
        bucket.labelled = False
        bucket.shown_before = bucket.tally()

    def _make_room(self) -> bool:
        """Take the slot that was used last the longest ago, of those that belong to no configured entity."""
        others = [bucket for bucket, configured in self.buckets.items() if not configured]
        if others:
            self.take(min(others, key=lambda bucket: (bucket.connections > 0, bucket.last_used)))
        return bool(others)
