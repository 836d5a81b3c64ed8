"""Samples the buckets of an engine once a minute."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypedDict, TypeVar

from gateway.events import AT_BROKER
from gateway.quotas.bucket import Bucket
from gateway.quotas.entity import Resolution
from gateway.steps import Steps

MINUTE = 60.0
MAX_SAMPLES = 10_000

Totals = tuple[int, int, float, int]
_UNUSED: Totals = (0, 0, 0.0, 0)
SampleT = TypeVar("SampleT")


class SampleHead(TypedDict):
    """The fields that all samples of a bucket's minute have."""

    time_ms: int
    gateway: str
    kind: str
    user: str | None
    client_id: str | None
    ip: str | None
    group: str | None
    quota: str | None
    limit: float | None
    amount: float
    active_seconds: int


def quota_of(resolution: Resolution) -> str | None:
    """The field `quota` of an event."""
    if resolution.entity is None:
        return None
    broker = resolution.tags.broker_text
    return str(resolution.entity) + (AT_BROKER + broker if broker else "")


class MinuteSampler(ABC, Generic[SampleT]):
    """Remembers the totals of each bucket at the last sample. `wall` is in seconds since the epoch.

    `dropped` counts samples and buckets beyond `MAX_SAMPLES`.
    """

    def __init__(self, wall: float) -> None:
        self._minute = wall // MINUTE
        self._seen: dict[Bucket, Totals] = {}
        self._forgotten: list[Bucket] = []
        self.dropped = 0

    @abstractmethod
    def _totals(self, bucket: Bucket) -> Totals:
        """Totals that only rise. The first is the amount, the last one the active seconds."""

    @abstractmethod
    def _is_idle(self, before: Totals, now: Totals) -> bool:
        """True if the minute has no sample."""

    @abstractmethod
    def _sample(self, head: SampleHead, before: Totals, now: Totals) -> SampleT: ...

    def forgotten(self, bucket: Bucket) -> None:
        """Keep a bucket that the engine drops, so that the next `take` samples its use since the last minute."""
        if bucket.amount_total == self._seen.get(bucket, _UNUSED)[0]:
            return
        if len(self._forgotten) >= MAX_SAMPLES:
            self.dropped += 1
        else:
            self._forgotten.append(bucket)

    def take(self, gateway: str, buckets: Iterable[Bucket], wall: float, *, last: bool = False) -> Steps[list[SampleT]]:
        """The samples of the last minute; none before the minute is over, except for the `last` call.

        Steps that are given up have no effect. The engine may be used between the steps.
        """
        minute = wall // MINUTE
        if minute == self._minute and not last:
            return []
        began_ms = int(self._minute * MINUTE * 1000)
        seen: dict[Bucket, Totals] = {}
        forgotten = list(self._forgotten)
        samples: list[SampleT] = []
        dropped = 0
        for bucket in (*buckets, *forgotten):
            yield
            before = self._seen.get(bucket, _UNUSED)
            seen[bucket] = now = self._totals(bucket)
            if self._is_idle(before, now):
                continue
            if len(samples) >= MAX_SAMPLES:
                dropped += 1
                continue
            head = _head(gateway, began_ms, bucket, before, now)
            samples.append(self._sample(head, before, now))
        for bucket in forgotten:
            del seen[bucket]
        del self._forgotten[: len(forgotten)]
        self._minute, self._seen = minute, seen
        self.dropped += dropped
        return samples


def _head(gateway: str, time_ms: int, bucket: Bucket, before: Totals, now: Totals) -> SampleHead:
    resolution = bucket.resolution
    tags = resolution.tags
    return SampleHead(
        time_ms=time_ms,
        gateway=gateway,
        kind=bucket.kind.name,
        user=tags.user,
        client_id=tags.client_id,
        ip=tags.ip,
        group=tags.group,
        quota=quota_of(resolution),
        limit=resolution.limit,
        amount=float(now[0] - before[0]),
        active_seconds=_active_seconds(before, now),
    )


def _active_seconds(before: Totals, now: Totals) -> int:
    """From 1 to 60. A bucket counts a second at its next tick, so the first use may not be counted yet."""
    return min(int(MINUTE), max(1, now[-1] - before[-1]))
