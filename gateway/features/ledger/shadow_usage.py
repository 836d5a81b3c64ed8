"""Samples the throttles by shadow limits once a minute."""

from gateway.events import ShadowSample
from gateway.features.ledger.minute_sampler import MinuteSampler, Totals, active_seconds, quota_of
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

    def _sample(self, gateway: str, time_ms: int, bucket: Bucket, before: Totals, now: Totals) -> ShadowSample:
        resolution = bucket.resolution
        tags = resolution.tags
        return ShadowSample(
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
            active_seconds=active_seconds(before, now),
            count=now[1] - before[1],
            throttle_ms=round((now[2] - before[2]) * 1000.0),
            throttle_max_ms=throttle_time_ms(self._longest),
        )
