"""Samples the use of each entity once a minute, because reports on utilisation need entities without throttles as well."""

from collections.abc import Iterable
from itertools import chain

from gateway.events import AT_BROKER, UsageSample
from gateway.quotas.bucket import Bucket
from gateway.quotas.entity import Resolution

MINUTE = 60.0
MAX_SAMPLES = 10_000


def quota_of(resolution: Resolution) -> str | None:
    """The field `quota` of an event."""
    if resolution.entity is None:
        return None
    broker = resolution.tags.broker_text
    return str(resolution.entity) + (AT_BROKER + broker if broker else "")


_UNUSED = (0, 0, 0.0, 0)


class UsageSampler:
    """Remembers the totals of each bucket at the last sample. `wall` is in seconds since the epoch."""

    def __init__(self, wall: float) -> None:
        self._minute = wall // MINUTE
        self._seen: dict[Bucket, tuple[int, int, float, int]] = {}
        self._forgotten: list[Bucket] = []
        self.dropped = 0

    def forgotten(self, bucket: Bucket) -> None:
        """Keep a bucket that the engine drops, so that the next `take` samples its use since the last minute."""
        if bucket.amount_total == self._seen.get(bucket, _UNUSED)[0]:
            return
        if len(self._forgotten) >= MAX_SAMPLES:
            self.dropped += 1
        else:
            self._forgotten.append(bucket)

    def take(self, gateway: str, buckets: Iterable[Bucket], wall: float, *, last: bool = False) -> list[UsageSample]:
        """The samples of the last minute; none before the minute is over, except for the `last` call."""
        minute = wall // MINUTE
        if minute == self._minute and not last:
            return []
        began, self._minute = self._minute, minute
        seen: dict[Bucket, tuple[int, int, float, int]] = {}
        samples: list[UsageSample] = []
        forgotten, self._forgotten = self._forgotten, []
        for bucket in chain(buckets, forgotten):
            amount, answered, latency, active = self._seen.get(bucket, _UNUSED)
            now = bucket.amount_total, bucket.answered_total, bucket.latency_seconds_total, bucket.active_seconds
            seen[bucket] = now
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
                    group=resolution.tags.group,
                    quota=quota_of(resolution),
                    limit=resolution.limit,
                    amount=float(bucket.amount_total - amount),
                    requests=requests,
                    latency_ms=(bucket.latency_seconds_total - latency) * 1000.0 if requests else None,
                    # A bucket counts a second at its next tick, so the first use may not be counted yet.
                    active_seconds=min(int(MINUTE), max(1, bucket.active_seconds - active)),
                )
            )
        for bucket in forgotten:
            del seen[bucket]
        self._seen = seen
        return samples
