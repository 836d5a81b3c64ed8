"""Checks and charges one request against its client's controller mutation quota (KIP-599).

Source: `StrictControllerMutationQuota` and `PermissiveControllerMutationQuota` of `ControllerMutationQuotaManager`.
"""

from gateway.quotas.bucket import LEAST_DELAY, Bucket, QuotaVerdict
from gateway.quotas.shadows import ShadowBucket


class MutationQuota:
    """One request's use of its client's buckets of partitions: its own, and its group's if the group has a limit.

    Shadow limits decide apart from the others, so that they never refuse an operation.

    Strict mode is for clients that know THROTTLING_QUOTA_EXCEEDED. It checks the bucket before it records an operation. So one
    operation may overdraw the bucket without limit, and the next operation is refused. Permissive mode refuses no operation; a
    client that overdraws the bucket is muted.
    """

    __slots__ = ("_at", "_buckets", "_delay", "_enforced", "_recorded", "_shadow", "_strict", "binding")

    def __init__(self, buckets: tuple[Bucket, ...], *, strict: bool) -> None:
        shadows = tuple([bucket for bucket in buckets[1:] if isinstance(bucket, ShadowBucket)])
        self._buckets = buckets[: len(buckets) - len(shadows)]
        self._shadow = MutationQuota(shadows, strict=strict) if shadows else None
        self.binding = buckets[0]  # the bucket with the longest delay
        self._strict = strict
        self._delay = 0.0
        self._enforced = False
        self._at = 0.0
        self._recorded = False

    @property
    def exceeded(self) -> bool:
        """True if an operation was refused, or if the client has to wait."""
        return self._enforced

    def record(self, partitions: int, now: float) -> bool:
        """Charge an operation on `partitions` partitions. False: the operation is refused and not charged."""
        if self._strict:
            if self._delay == 0.0:
                self._check(now)
            if self.exceeded:
                return False
        for bucket in self._buckets:
            bucket.record(partitions, now)
        self._recorded = True
        if self._shadow is not None:
            self._shadow.record(partitions, now)
        return True

    def in_debt(self, now: float) -> bool:
        """True if a client would have to wait now. Charges nothing."""
        return max([bucket.throttle_left(now) for bucket in self._buckets]) >= LEAST_DELAY

    def refuse(self, now: float) -> QuotaVerdict:
        """The time until the end of the debt, of the bucket `binding`."""
        self._check(now)
        return self._delay, self._enforced

    def settle(self, now: float) -> QuotaVerdict:
        """The verdict on the request, after all its operations are recorded.

        A request that recorded nothing is not throttled for the debt of other requests.
        """
        if self._recorded and not self._strict:
            self._check(now)
        if self._shadow is not None:
            self._shadow.settle(now)
        return self.time_left(now), self._enforced

    def time_left(self, now: float) -> float:
        """The remaining throttle time in seconds. Without enforcement the time stays constant."""
        return max(0.0, self._delay - (now - self._at)) if self._enforced else self._delay

    def _check(self, now: float) -> None:
        self.binding = max(self._buckets, key=lambda bucket: 0.0 if bucket.meter is None else bucket.meter.delay(now))
        self._delay, self._enforced = self.binding.refuse(now)
        self._at = now
