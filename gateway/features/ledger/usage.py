"""Samples the use of each entity once a minute, because reports on utilisation need entities without throttles as well."""

from gateway.events import UsageSample
from gateway.features.ledger.minute_sampler import MinuteSampler, Totals, active_seconds, quota_of
from gateway.quotas.bucket import Bucket


class UsageSampler(MinuteSampler[UsageSample]):
    """The totals are amount, answered requests, latency in seconds, and active seconds."""

    def _totals(self, bucket: Bucket) -> Totals:
        return bucket.amount_total, bucket.answered_total, bucket.latency_seconds_total, bucket.active_seconds

    def _is_idle(self, before: Totals, now: Totals) -> bool:
        return now[0] == before[0]

    def _sample(self, gateway: str, time_ms: int, bucket: Bucket, before: Totals, now: Totals) -> UsageSample:
        resolution = bucket.resolution
        tags = resolution.tags
        requests = now[1] - before[1]
        return UsageSample(
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
            requests=requests,
            latency_ms=(now[2] - before[2]) * 1000.0 if requests else None,
            active_seconds=active_seconds(before, now),
        )
