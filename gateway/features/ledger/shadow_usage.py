"""Samples the throttles by shadow limits once a minute."""

from gateway.events import ShadowSample
from gateway.features.ledger.minute_sampler import MinuteSampler, SampleHead, Totals
from gateway.quotas.bucket import Bucket
from gateway.quotas.meter import throttle_time_ms
from gateway.quotas.shadows import ShadowBucket


class ShadowSampler(MinuteSampler[ShadowSample]):
    """The totals are amount, throttled requests, throttle time in seconds, and active seconds."""

    def __init__(self, wall: float) -> None:
        super().__init__(wall)
        self._longest = 0.0  # throttle time of the bucket that was read last, in seconds

    def _totals(self, bucket: Bucket) -> Totals:
        self._longest = 0.0
        if isinstance(bucket, ShadowBucket):
            self._longest, bucket.longest = bucket.longest, 0.0
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
