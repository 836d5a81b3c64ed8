"""Samples the buckets of an engine once a minute."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypedDict, TypeVar

from gateway.events import AT_BROKER
from gateway.quotas.bucket import Bucket
from gateway.quotas.entity import Resolution, Tags
from gateway.steps import Steps

MINUTE = 60.0
MAX_SAMPLES = 10_000

BucketTotals = tuple[int, int, float, int]
_UNUSED: BucketTotals = (0, 0, 0.0, 0)
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


class _Use(NamedTuple):
    """One entity's use of one kind since the last sample. `resolution` is that of its last bucket."""

    resolution: Resolution
    growth: BucketTotals
    peak: float


def quota_of(resolution: Resolution) -> str | None:
    """The field `quota` of an event."""
    if resolution.entity is None:
        return None
    broker = resolution.tags.broker_text
    return str(resolution.entity) + (AT_BROKER + broker if broker else "")


class MinuteSampler(ABC, Generic[SampleT]):
    """Remembers the totals of each bucket at the last sample. `wall` is in seconds since the epoch.

    An entity whose buckets are dropped and made again has one sample, as if it had kept the first. `dropped` counts entities
    beyond `MAX_SAMPLES`.
    """

    def __init__(self, wall: float) -> None:
        self._minute = wall // MINUTE
        self._from_its_beginning = False
        self._seen: dict[Bucket, BucketTotals] = {}
        self._peaks: dict[Bucket, float] = {}  # that a `take` has read and not returned yet
        self._forgotten: dict[tuple[str, Tags], _Use] = {}
        self._reading = False
        self._late: list[Bucket] = []  # forgotten since `take` began
        self.dropped = 0

    @abstractmethod
    def _totals(self, bucket: Bucket) -> BucketTotals:
        """Totals that only rise. The first is the amount, the last one the active seconds."""

    @abstractmethod
    def _is_idle(self, growth: BucketTotals) -> bool:
        """True if the minute has no sample."""

    @abstractmethod
    def _sample(self, head: SampleHead, growth: BucketTotals, peak: float, *, partial: bool) -> SampleT:
        """`peak` is the largest figure of the minute, see `_take_peak`. `partial`: see `UsageSample.partial`."""

    def _take_peak(self, bucket: Bucket) -> float:  # noqa: ARG002
        """The largest figure since the last call."""
        return 0.0

    def forgotten(self, bucket: Bucket) -> None:
        """Keep the use of a bucket that the engine drops, for the sample of its entity."""
        if not self._reading:
            self._fold(bucket)
        elif len(self._late) >= MAX_SAMPLES:
            self.dropped += 1
        else:  # it is known after the end of `take` which minute has its use
            self._late.append(bucket)

    def take(self, gateway: str, buckets: Iterable[Bucket], wall: float, *, last: bool = False) -> Steps[list[SampleT]]:
        """The samples of the last minute; none before the minute is over, except for the `last` call.

        Steps that are given up have no effect. The engine may be used between the steps.
        """
        minute = wall // MINUTE
        if minute == self._minute and not last:
            return []
        self._fold_late()  # of steps that were given up
        self._reading = True
        began_ms = int(self._minute * MINUTE * 1000)
        is_over = minute == self._minute + 1  # otherwise it is the last call, or the clock was set
        partial = not (is_over and self._from_its_beginning)
        seen: dict[Bucket, BucketTotals] = {}
        samples: list[SampleT] = []
        dropped = 0
        for kind, use in self._uses(list(buckets), seen):
            yield
            if self._is_idle(use.growth):
                continue
            if len(samples) >= MAX_SAMPLES:
                dropped += 1
                continue
            samples.append(self._sample(_head(gateway, began_ms, kind, use), use.growth, use.peak, partial=partial))
        self._minute, self._seen, self._from_its_beginning = minute, seen, is_over
        self._peaks, self._forgotten = {}, {}
        self._reading = False
        self._fold_late()
        self.dropped += dropped
        return samples

    def _uses(self, buckets: list[Bucket], seen: dict[Bucket, BucketTotals]) -> Iterator[tuple[str, _Use]]:
        """The kinds and uses of all entities. `seen` gets the totals of the buckets."""
        forgotten = dict(self._forgotten)
        for bucket in buckets:
            seen[bucket] = now = self._totals(bucket)
            yield bucket.kind.name, self._use(bucket, now, forgotten.pop(_key(bucket), None))
        for (kind, _), use in forgotten.items():
            yield kind, use

    def _use(self, bucket: Bucket, now: BucketTotals, earlier: _Use | None) -> _Use:
        """The use of a bucket since the last sample, and of the `earlier` buckets of its entity."""
        before = self._seen.get(bucket, _UNUSED)
        growth = (now[0] - before[0], now[1] - before[1], now[2] - before[2], now[3] - before[3])
        peak = max(self._take_peak(bucket), self._peaks.get(bucket, 0.0))
        if peak > 0.0:
            self._peaks[bucket] = peak
        if earlier is not None:
            past = earlier.growth
            growth = (growth[0] + past[0], growth[1] + past[1], growth[2] + past[2], growth[3] + past[3])
            peak = max(peak, earlier.peak)
        return _Use(bucket.resolution, growth, peak)

    def _fold(self, bucket: Bucket) -> None:
        key = _key(bucket)
        earlier = self._forgotten.get(key)
        use = self._use(bucket, self._totals(bucket), earlier)
        self._seen.pop(bucket, None)
        self._peaks.pop(bucket, None)
        if earlier is None and self._is_idle(use.growth):
            return
        if earlier is None and len(self._forgotten) >= MAX_SAMPLES:
            self.dropped += 1
        else:
            self._forgotten[key] = use

    def _fold_late(self) -> None:
        for bucket in self._late:
            self._fold(bucket)
        self._late = []


def _key(bucket: Bucket) -> tuple[str, Tags]:
    return bucket.kind.name, bucket.resolution.tags


def _head(gateway: str, time_ms: int, kind: str, use: _Use) -> SampleHead:
    tags = use.resolution.tags
    return SampleHead(
        time_ms=time_ms,
        gateway=gateway,
        kind=kind,
        user=tags.user,
        client_id=tags.client_id,
        ip=tags.ip,
        group=tags.group,
        quota=quota_of(use.resolution),
        limit=use.resolution.limit,
        amount=float(use.growth[0]),
        active_seconds=min(int(MINUTE), max(1, use.growth[3])),  # the first use may come before the tick that counts its second
    )
