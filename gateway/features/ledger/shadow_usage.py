"""Samples the throttles by shadow limits once a minute."""

from collections.abc import Iterable
from itertools import chain

from gateway.events import ShadowSample
from gateway.features.ledger.usage import MAX_SAMPLES, MINUTE, quota_of
from gateway.quotas.bucket import Bucket
from gateway.quotas.meter import throttle_time_ms
from gateway.quotas.shadows import ShadowBucket

_UNUSED = (0, 0, 0.0, 0)


class ShadowSampler:
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

    def take(self, gateway: str, buckets: Iterable[Bucket], wall: float, *, last: bool = False) -> list[ShadowSample]:
        """The samples of the last minute; none before the minute is over, except for the `last` call."""
        minute = wall // MINUTE
        if minute == self._minute and not last:
            return []
        began, self._minute = self._minute, minute
        before, self._seen = self._seen, {}
        forgotten, self._forgotten = self._forgotten, []
        samples: list[ShadowSample] = []
        for bucket in chain(buckets, forgotten):
            amount, throttled, seconds, active = before.get(bucket, _UNUSED)
            self._seen[bucket] = (
                bucket.amount_total, bucket.throttled_total, bucket.throttle_seconds_total, bucket.active_seconds
            )  # fmt: skip
            longest = 0.0
            if isinstance(bucket, ShadowBucket):
                longest, bucket.longest = bucket.longest, 0.0
            if bucket.amount_total == amount and bucket.throttled_total == throttled:
                continue
            if len(samples) >= MAX_SAMPLES:
                self.dropped += 1
                continue
            resolution = bucket.resolution
            tags = resolution.tags
            samples.append(
                ShadowSample(
                    time_ms=int(began * MINUTE * 1000),
                    gateway=gateway,
                    kind=bucket.kind.name,
                    user=tags.user,
                    client_id=tags.client_id,
                    ip=tags.ip,
                    group=tags.group,
                    quota=quota_of(resolution),
                    limit=resolution.limit,
                    amount=float(bucket.amount_total - amount),
                    # A bucket counts a second at its next tick, so the first use may not be counted yet.
                    active_seconds=min(int(MINUTE), max(1, bucket.active_seconds - active)),
                    count=bucket.throttled_total - throttled,
                    throttle_ms=round((bucket.throttle_seconds_total - seconds) * 1000.0),
                    throttle_max_ms=throttle_time_ms(longest),
                )
            )
        for bucket in forgotten:
            del self._seen[bucket]
        return samples
