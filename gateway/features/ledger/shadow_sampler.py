"""Samples the throttles by shadow limits once a minute."""

from gateway.events import ShadowSample
from gateway.features.ledger.minute_sampler import BucketTotals, MinuteSampler, SampleHead
from gateway.quotas.bucket import Bucket
from gateway.quotas.meter import throttle_time_ms
from gateway.quotas.shadows import ShadowBucket


class ShadowSampler(MinuteSampler[ShadowSample]):
    """The totals are amount, throttled requests, throttle seconds and active seconds. The peak is the longest throttle time."""

    def _totals(self, bucket: Bucket) -> BucketTotals:
        return bucket.amount_total, bucket.throttled_total, bucket.throttle_seconds_total, bucket.active_seconds

    def _take_peak(self, bucket: Bucket) -> float:
        longest = 0.0
        if isinstance(bucket, ShadowBucket):
            longest, bucket.longest = bucket.longest, 0.0
        return longest

    def _is_idle(self, growth: BucketTotals) -> bool:
        return growth[:2] == (0, 0)

    def _sample(self, head: SampleHead, growth: BucketTotals, peak: float, *, partial: bool) -> ShadowSample:  # noqa: ARG002
        return ShadowSample(
            **head,
            count=growth[1],
            throttle_ms=round(growth[2] * 1000.0),
            throttle_max_ms=throttle_time_ms(peak),
        )
