"""What each entity has used, minute by minute: reports about utilisation need those who were not throttled too."""

from collections.abc import Iterable

from gateway.events import UsageSample
from gateway.quotas.bucket import Bucket

MINUTE = 60.0
MAX_SAMPLES = 10_000


class UsageSampler:
    """Remembers how far each bucket had come. `wall` is in seconds since 1970."""

    def __init__(self, wall: float) -> None:
        self._minute = wall // MINUTE
        self._seen: dict[Bucket, tuple[int, int, float]] = {}
        self.dropped = 0

    def take(self, gateway: str, buckets: Iterable[Bucket], wall: float) -> list[UsageSample]:
        """The samples of the minute that is over; none while it still runs."""
        minute = wall // MINUTE
        if minute == self._minute:
            return []
        began, self._minute = self._minute, minute
        seen: dict[Bucket, tuple[int, int, float]] = {}
        samples: list[UsageSample] = []
        for bucket in buckets:
            amount, answered, latency = self._seen.get(bucket, (0, 0, 0.0))
            seen[bucket] = (bucket.amount_total, bucket.answered_total, bucket.latency_seconds_total)
            if bucket.amount_total == amount:
                continue
            if len(samples) >= MAX_SAMPLES:
                self.dropped += 1
                continue
            requests = bucket.answered_total - answered
            resolution = bucket.resolution
            samples.append(
                UsageSample(
                    time_ms=int(began * MINUTE * 1000),
                    gateway=gateway,
                    kind=bucket.kind.name,
                    user=resolution.tags.user,
                    client_id=resolution.tags.client_id,
                    ip=resolution.tags.ip,
                    quota=None if resolution.entity is None else str(resolution.entity),
                    limit=resolution.limit,
                    amount=float(bucket.amount_total - amount),
                    requests=requests,
                    latency_ms=(bucket.latency_seconds_total - latency) * 1000.0 if requests else None,
                )
            )
        self._seen = seen
        return samples
