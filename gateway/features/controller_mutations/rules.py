"""What one request may do of its client's controller mutation quota (KIP-599).

Source: `StrictControllerMutationQuota` and `PermissiveControllerMutationQuota` of `ControllerMutationQuotaManager`.
"""

from gateway.quotas.bucket import LEAST_DELAY, Bucket, QuotaVerdict


class MutationQuota:
    """One request's use of a bucket of partitions.

    Strict, for clients that know THROTTLING_QUOTA_EXCEEDED: checked first, then recorded, so that one operation may overdraw
    the bucket as far as it likes and the next one is refused. Otherwise permissive: nothing is refused, who overdraws waits.
    """

    __slots__ = ("_at", "_bucket", "_delay", "_enforced", "_recorded", "_strict")

    def __init__(self, bucket: Bucket, *, strict: bool) -> None:
        self._bucket = bucket
        self._strict = strict
        self._delay = 0.0
        self._enforced = False
        self._at = 0.0
        self._recorded = False

    @property
    def exceeded(self) -> bool:
        """Whether something has been refused, or is to be waited for."""
        return self._enforced

    def record(self, partitions: int, now: float) -> bool:
        """Count an operation on so many partitions; False if it is refused, in which case it does not count."""
        if self._strict:
            if self._delay == 0.0:
                self._check(now)
            if self.exceeded:
                return False
        self._bucket.record(partitions, now)
        self._recorded = True
        return True

    def in_debt(self, now: float) -> bool:
        """True while a client would have to wait. Nothing is counted."""
        return self._bucket.throttle_left(now) >= LEAST_DELAY

    def settle(self, now: float) -> QuotaVerdict:
        """The verdict on the request, once all its operations are recorded.

        A request that recorded nothing is not throttled for the debt of other requests.
        """
        if self._recorded and not self._strict:
            self._check(now)
        return self.time_left(now), self._enforced

    def time_left(self, now: float) -> float:
        """The rest of the throttle time, in seconds. A time that is not enforced does not pass."""
        return max(0.0, self._delay - (now - self._at)) if self._enforced else self._delay

    def _check(self, now: float) -> None:
        self._delay, self._enforced = self._bucket.refuse(now)
        self._at = now
