"""Samples the throttles by shadow limits once a minute."""

from collections.abc import Iterable

from gateway.events import ShadowSample
from gateway.features.ledger.minute_sampler import MinuteSampler, SampleHead, Totals
from gateway.quotas.bucket import Bucket
from gateway.quotas.meter import throttle_time_ms
from gateway.quotas.shadows import ShadowBucket
from gateway.steps import Steps


class ShadowSampler(MinuteSampler[ShadowSample]):
    """The totals are amount, throttled requests, throttle time in seconds, and active seconds."""

    def __init__(self, wall: float) -> None:
        super().__init__(wall)
        self._longest = 0.0  # throttle time of the bucket that was read last, in seconds
        self._read: dict[Bucket, float] = {}  # the longest throttle times that a `take` has read and not returned yet

    def take(self, gateway: str, buckets: Iterable[Bucket], wall: float, *, last: bool = False) -> Steps[list[ShadowSample]]:
        samples = yield from super().take(gateway, buckets, wall, last=last)
        self._read.clear()
        return samples

    def _totals(self, bucket: Bucket) -> Totals:
        self._longest = 0.0
        if isinstance(bucket, ShadowBucket):
            self._longest = max(bucket.longest, self._read.get(bucket, 0.0))
            self._read[bucket], bucket.longest = self._longest, 0.0
        return bucket.amount_total, bucket.throttled_total, bucket.throttle_seconds_total, bucket.active_seconds

    def _is_idle(self, before: Totals, now: Totals) -> bool:
        return now[:2] == before[:2]

    def _sample(self, head: SampleHead, before: Totals, now: Totals) -> ShadowSample:
        return ShadowSample(
            **head,
            count=now[1] - before[1],
            throttle_ms=round((now[2] - before[2]) * 1000.0),
            throttle_max_ms=throttle_time_ms(self._longest),
        )
