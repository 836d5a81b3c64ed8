"""Samples guarantees and entitlements of groups once a minute, and counts the seconds in which their clients wait."""

from collections import Counter
from collections.abc import Iterable

from gateway.events import GroupSample
from gateway.features.ledger.minute_sampler import MAX_SAMPLES, MINUTE
from gateway.quotas.group_buckets import GroupShareRow


class GroupSampler:
    """`take` is called once a second. `wall` is in seconds since the epoch. `dropped` counts samples beyond `MAX_SAMPLES`."""

    def __init__(self, wall: float) -> None:
        self._minute = wall // MINUTE
        self._waited: Counter[tuple[str, str]] = Counter()
        self._used: set[tuple[str, str]] = set()
        self.dropped = 0

    def take(self, gateway: str, rows: Iterable[GroupShareRow], wall: float, *, last: bool = False) -> list[GroupSample]:
        """The samples of the last minute; none before the minute is over, except for the `last` call."""
        present = list(rows)
        for row in present:
            if row.wants_more:
                self._waited[row.kind, row.group] += 1
            if row.use > 0.0 or row.wants_more:
                self._used.update(((row.kind, row.group), (row.kind, row.parent or row.group)))
        began, self._minute = self._minute, wall // MINUTE
        return self._samples(gateway, present, began) if self._minute != began or last else []

    def _samples(self, gateway: str, rows: Iterable[GroupShareRow], minute: float) -> list[GroupSample]:
        waited, self._waited = self._waited, Counter()
        used, self._used = self._used, set()
        samples: list[GroupSample] = []
        for row in rows:
            if (row.kind, row.group) not in used and (row.kind, row.parent) not in used:
                continue
            if len(samples) >= MAX_SAMPLES:
                self.dropped += 1
                continue
            samples.append(
                GroupSample(
                    time_ms=int(minute * MINUTE * 1000),
                    gateway=gateway,
                    kind=row.kind,
                    group=row.group,
                    parent=row.parent or None,
                    guarantee=row.guarantee,
                    entitlement=row.entitlement,
                    waited_seconds=min(int(MINUTE), waited[row.kind, row.group]),
                )
            )
        return samples
