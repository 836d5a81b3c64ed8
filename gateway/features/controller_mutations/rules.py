"""Admits and charges the operations of one request under its client's controller mutation quota (KIP-599).

Source: `StrictControllerMutationQuota` and `PermissiveControllerMutationQuota` of `ControllerMutationQuotaManager`. Kafka's
controller decides and charges at once. Weir admits an operation first, and charges it once the broker's answer is there.
"""

from gateway.features.controller_mutations.turns import Place
from gateway.quotas.bucket import LEAST_DELAY, Bucket, QuotaVerdict
from gateway.quotas.shadows import ShadowBucket


class MutationQuota:
    """One request's use of its client's buckets of partitions: its own, and its group's if the group has a limit.

    Shadow limits decide apart from the others, so that they never refuse an operation.

    Strict mode is for clients that know THROTTLING_QUOTA_EXCEEDED. It checks the bucket before each operation. So one operation
    may overdraw the bucket without limit, and the next operation is refused. Permissive mode refuses no operation; a client
    that overdraws the bucket is muted. In both modes, a request takes its turn at `place` while the bucket is in debt.

    `refused`: a strict operation was refused. `late`: a permissive request has to wait for its turn. `reserved`: the
    partitions of the admitted operations, which count against the rest of the request. `awaited`: a bucket in which operations
    of other requests are reserved. The decision depends on their outcome, so it has to wait.
    """

    __slots__ = (
        "_at", "_buckets", "_charged", "_delay", "_enforced", "_place", "_shadow", "_strict", "_wanted",
        "awaited", "binding", "late", "limits",
        "refused", "reserved",
    )  # fmt: skip

    def __init__(self, buckets: tuple[Bucket, ...], place: Place | None = None, *, strict: bool) -> None:
        shadows = tuple([bucket for bucket in buckets[1:] if isinstance(bucket, ShadowBucket)])
        self._buckets = buckets[: len(buckets) - len(shadows)]
        self._shadow = MutationQuota(shadows, strict=strict) if shadows else None
        self.limits = any(bucket.meter is not None and bucket.policy.enforce for bucket in self._buckets)
        self.binding = buckets[0]  # the bucket with the longest delay
        self._place = place  # None for shadow limits
        self._wanted = 0  # partitions that the request has to wait for
        self._strict = strict
        self._delay = 0.0
        self._enforced = False
        self._at = 0.0
        self._charged = False
        self.reserved = 0
        self.refused = False
        self.late = False
        self.awaited: Bucket | None = None

    def admit(self, partitions: int, now: float) -> bool:
        """Reserve `partitions` for an operation. False: the operation is refused."""
        if self._strict:
            self.refused = self.refused or self._must_wait(now)
            if self.refused:
                self._wanted = self._wanted or partitions
                return False
        else:
            self.late = self.late or (self.reserved == 0 and self._must_wait(now))
            self._wanted += partitions
        self.reserved += partitions
        return True

    def _must_wait(self, now: float) -> bool:
        """True if a bucket is in debt, or requests of other connections are first. May set `awaited`.

        A request that was overtaken begins in spite of a debt (`Line.wait`).
        """
        if self.reserved > 0 or self._place is None or not self.limits:
            return self.in_debt(now)
        if self._place.wait(self._buckets, now) >= LEAST_DELAY:
            return True
        self._await_outcomes(now)
        return False

    def in_debt(self, now: float) -> bool:
        """True if the operations of this request, or the use before it, have put a bucket in debt. May set `awaited`."""
        if not self.limits:
            return False
        for bucket in self._buckets:
            if _owes(bucket, self.reserved, now):
                return True
        self._await_outcomes(now)
        return False

    def _await_outcomes(self, now: float) -> None:
        for bucket in self._buckets:
            if bucket.reserved > 0 and _owes(bucket, self.reserved + bucket.reserved, now):
                self.awaited = bucket

    def charge(self, partitions: int, now: float) -> None:
        """Charge an operation that was executed, or of which the outcome remains unknown."""
        if self._strict and not self.limits and self._delay == 0.0:
            self._check(now)  # an enforced quota would refuse the operation
        for bucket in self._buckets:
            bucket.record(partitions, now)
        self._charged = True
        if self._shadow is not None:
            self._shadow.charge(partitions, now)

    def refuse(self, now: float) -> QuotaVerdict:
        """The time until the request's turn at the bucket `binding`."""
        self._check(now)
        return self._delay, self._enforced

    def take_turns(self, now: float) -> list[float]:
        """Take or keep places for what was not admitted. Returns the seconds until its turn at each bucket."""
        if self._place is None or not (self.refused or self.late):
            return [0.0] * len(self._buckets)
        return self._place.take(self._buckets, self._wanted, now)

    def begin_turn(self, now: float) -> None:
        """Give the places up, as the request is forwarded. A strict request that costs nothing waits for no turn."""
        if self._place is None:
            return
        if self.reserved > 0:
            self._place.serve(self.reserved, now)
        elif not self._strict:
            self._place.leave()

    def settle(self, now: float) -> QuotaVerdict:
        """The verdict on the request, after all its operations are charged.

        A request that charges nothing is not throttled for the debt of other requests, unless one of its topics was refused.
        """
        if self.refused or (self._charged and not self._strict):
            self._check(now)
        if self._shadow is not None:
            self._shadow.settle(now)
        return self.time_left(now), self._enforced

    def time_left(self, now: float) -> float:
        """The remaining throttle time in seconds. Without enforcement the time stays constant."""
        return max(0.0, self._delay - (now - self._at)) if self._enforced else self._delay

    def _check(self, now: float) -> None:
        turns = self.take_turns(now)
        delays = [
            turn if bucket.meter is None else max(turn, bucket.meter.delay(now))
            for bucket, turn in zip(self._buckets, turns, strict=True)
        ]
        longest = delays.index(max(delays))
        self.binding = self._buckets[longest]
        self._delay, self._enforced = self.binding.admit(now, turns[longest])
        self._at = now


def _owes(bucket: Bucket, reserved: int, now: float) -> bool:
    """True if a client would have to wait now, once the reserved partitions are charged."""
    return bucket.meter is not None and bucket.policy.enforce and bucket.meter.delay(now, reserved) >= LEAST_DELAY
