"""Samples the use of each entity once a minute, because reports on utilisation need entities without throttles as well."""

from gateway.events import UsageSample
from gateway.features.ledger.minute_sampler import BucketTotals, MinuteSampler, SampleHead
from gateway.quotas.bucket import Bucket


class UsageSampler(MinuteSampler[UsageSample]):
    """The totals are amount, answered requests, latency in seconds, and active seconds."""

    def _totals(self, bucket: Bucket) -> BucketTotals:
        return bucket.amount_total, bucket.answered_total, bucket.latency_seconds_total, bucket.active_seconds

    def _is_idle(self, growth: BucketTotals) -> bool:
        return growth[0] == 0

    def _sample(self, head: SampleHead, growth: BucketTotals, peak: float, *, partial: bool) -> UsageSample:  # noqa: ARG002
        requests = growth[1]
        latency_ms = growth[2] * 1000.0 if requests else None
        return UsageSample(**head, requests=requests, latency_ms=latency_ms, partial=partial or None)
