"""The meter of a group that shares a capacity with other groups. It charges the groups above it as well.

A group within its entitlement waits for its own bucket only. A group above its entitlement borrows, so it waits for its
parent's bucket as well. The wait ends when the entitlement has paid for the use (the green and yellow of Linux' HTB). While the
parent's bucket has tokens to spare, the group's own bucket runs at its ceiling.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

from gateway.quotas.meter import Meter, PastUse, carry_over, precharge
from gateway.quotas.token_bucket import MAX_DEBT_SECONDS, TokenBucket

LEAF_BURST_SECONDS: Final = 1.0
"""A group with clients may use the rate of this time at once. A group with groups below it may use that of one interval."""

ENTITLED_PART: Final = 0.5
"""Of an interval: the entitlement of this time may be used at once, in spite of a parent in debt. A group that returns uses it
beside the use of the others, and nobody pays it back. So a longer time would exceed the parent's ceiling."""

_LEAST_FREE: Final = 1.0
"""One request, for kinds that count requests."""

SPARE_PART: Final = 0.2
"""Of the parent's burst: tokens above this are spare, so a group may use them before the next division. A division lags one to
three intervals behind a group that stops. The balances of two gateways may differ by a tenth."""

PEER_INTERVALS: Final = 3.0
"""The time that spare tokens pay for at once, for use of peers. Their messages arrive within this time."""

LONGEST_ENTITLEMENT_DEBT: Final = 1.0
"""Seconds. After this time at the latest, a group that has borrowed gets its entitlement again."""

_DECAY: Final = 0.1
"""The part of the second balance's debt that decays in a second. All gateways subtract the same use from this balance. So a
difference between two gateways would stay for good, and the clients of one would wait longer."""


class EntitledBucket(TokenBucket):
    """A token bucket with a second balance, which the group's entitlement refills.

    The second balance holds the entitlement of `ENTITLED_PART`, at least one unit. Its debt is as small: use that the parent
    has lent is not paid back later. Such use is `_forgotten` while the balance is in debt. Presumed use that comes back was a
    part of the forgotten use. Otherwise a group that borrows would get it as credit. The debt of a group that does not borrow
    decays: its tokens, which gateways share, bound its use.

    `_lost` is the inflow that the full bucket could not hold until `_full_at`. It pays for late reports of peers.
    """

    __slots__ = ("_entitlement", "_forgotten", "_free", "_full_at", "_interval", "_lost", "_most_free", "_topped_up")

    def __init__(self, rate: float, entitlement: float, burst_seconds: float, least_burst: float, now: float) -> None:
        super().__init__(rate, burst_seconds, now, MAX_DEBT_SECONDS, least_burst)
        self._entitlement = entitlement
        self._most_free = 0.0
        self._free = 0.0
        self._forgotten = 0.0
        self._interval = 0.0
        self._topped_up = now
        self._lost = inf  # the bucket was full before, too
        self._full_at = now

    def entitle(self, entitlement: float, interval: float, now: float) -> None:
        """Change the entitlement per second, and the time between two divisions."""
        self._free += (now - self._last) * (self._entitlement - entitlement)
        most = max(entitlement * interval * ENTITLED_PART, _LEAST_FREE)
        if self._most_free == 0.0:
            self._free = most
        self._entitlement = entitlement
        self._interval = interval
        self._most_free = most

    def set_burst(self, burst_seconds: float) -> None:
        """Takes effect with the next change of the limit."""
        self._burst_seconds = burst_seconds

    def set_limit(self, limit: float, now: float) -> None:
        self._overflow(now)
        self._free = self._unspent(now)
        super().set_limit(limit, now)

    def forgive(self, now: float) -> None:
        self._free = max(0.0, self._unspent(now))
        super().forgive(now)

    def restore(self, used: Sequence[PastUse], now: float) -> None:
        super().restore(used, now)
        self._free = self._lost = 0.0

    def charge(self, amount: float, now: float) -> float:
        self._overflow(now)
        unspent = self._unspent(now)
        if unspent >= 0.0:
            self._forgotten = 0.0
        if amount < 0.0:
            kept = min(-amount, self._forgotten)
            self._forgotten -= kept
            self._free = min(unspent - amount - kept, self._most_free)
            return super().charge(amount, now)
        free = unspent - amount
        least = -self._entitlement * LONGEST_ENTITLEMENT_DEBT
        if free < least and free < -amount:
            least = min(least, -amount)
            self._forgotten += least - free
            free = least
        self._free = free
        return super().charge(amount, now)

    def charge_late(self, amount: float, seconds: float, now: float) -> float:
        """Inflow that was lost meanwhile pays first: at a gateway that knew of the use, the bucket was not full."""
        self._overflow(now)
        late = min(self._lost, max(seconds - (now - self._full_at), 0.0) * self._limit)
        paid = min(amount, late)
        self._lost = late - paid
        return self.charge(amount - paid, now)

    def _overflow(self, now: float) -> None:
        lost = self._tokens + (now - self._last) * self._limit - self._burst
        if lost > 0.0:
            self._tokens -= lost
            self._lost += lost
            self._full_at = now

    def adjust(self, amount: float, now: float) -> None:
        """The second balance stays."""
        self._overflow(now)
        self._free = self._unspent(now)
        super().charge(amount, now)

    def top_up(self, ceiling: float, intervals: float, now: float) -> float:
        """Pay a debt as if the rate had been `ceiling` since the last call, for so many `intervals` at most.

        To be called after a charge. `inf` pays the whole debt. Returns the new delay.
        """
        paid = inf if ceiling == inf else (ceiling - self._limit) * min(now - self._topped_up, self._interval * intervals)
        self._topped_up = now
        self._tokens = min(self._tokens + paid, 0.0)
        return -self._tokens / self._limit

    def bound_debt(self) -> None:
        """Bound the own debt by `_most_free` units, as the parent's bucket has paid for the use."""
        if self._free < -self._most_free:
            self._forgotten -= self._free + self._most_free
            self._free = -self._most_free

    def seconds_to_pay(self, now: float, further: float = 0.0) -> float:
        """The seconds until the entitlement has paid for the use, and for `further` units."""
        free = self._unspent(now) - further
        return -free / self._entitlement if free < 0.0 else 0.0

    def _unspent(self, now: float) -> float:
        past = now - self._last
        free = self._free + past * self._entitlement
        if self._free < 0.0 and self._limit <= self._entitlement:
            free -= self._free * min(past * _DECAY, 1.0)
        return self._most_free if free > self._most_free else free


class GroupMeter(Meter):
    """`own` is the group's bucket, which gateways may share; `entitled` is the same bucket without its peers.

    `used` is the use that the groups below have charged. A group that clients belong to counts in its `Bucket`. `topped_up`
    is set when the group has used more than its rate, because its parent had tokens to spare. The caller resets it.
    `lends`: the allocation is below the entitlement, so other groups use tokens of this bucket.
    """

    __slots__ = ("_ceiling", "_entitled", "lends", "own", "parent", "topped_up", "used")

    def __init__(self, own: Meter, entitled: EntitledBucket, limit: float, parent: "GroupMeter | None") -> None:
        super().__init__(limit)
        self.own = own
        self._entitled = entitled
        self._ceiling = limit
        self.parent = parent
        self.used = 0.0
        self.topped_up = False
        self.lends = False

    def set_rates(self, allocation: float, entitlement: float, ceiling: float, interval: float, now: float) -> None:
        """Run at the larger of two rates until the next division, and at `ceiling` while the parent has tokens to spare."""
        self._entitled.entitle(entitlement, interval, now)
        self._ceiling = ceiling
        self.lends = allocation < entitlement
        self.set_limit(entitlement if self.lends else allocation, now)

    def spare(self, now: float) -> bool:
        """True if the groups below may use more than their rates.

        The bucket of a group that lends stays full for as long as it lends. Its tokens are spare only if its parent has spare
        tokens too. Otherwise one of its groups would take what the division has lent to the groups beside it.
        """
        if self.balance(now) <= SPARE_PART * self.capacity:
            return False
        return not self.lends or self.parent is None or self.parent.spare(now)

    def set_burst(self, burst_seconds: float) -> None:
        self._entitled.set_burst(burst_seconds)

    def take_over(self, old: Meter, used: float, now: float) -> None:
        """Continue with the use and the debt of the meter that the group had outside of a tree.

        A window has no tokens: then the recent use of `used` units counts. The groups above are not charged.
        """
        if old.tokens(now) is None:
            precharge(self._entitled, used, now)
        else:
            carry_over(old, self._entitled, now)

    def charge(self, amount: float, now: float) -> float:
        delay = self.own.charge(amount, now)
        parent = self.parent
        if parent is None:
            return delay
        parent.used += amount
        above = parent.charge(amount, now)
        if above <= 0.0:
            self._entitled.bound_debt()
            if delay > 0.0 and parent.spare(now):
                self.topped_up = True
                return self._top_up(parent, 1.0, now)
        elif above > delay:
            wait = self._entitled.seconds_to_pay(now)
            if wait > delay:
                return min(wait, above)
        return delay

    def _top_up(self, parent: "GroupMeter", intervals: float, now: float) -> float:
        return self._entitled.top_up(self._ceiling if self._ceiling < parent.limit else inf, intervals, now)

    def follow_peers(self, now: float) -> None:
        """Pay for the use of peers with spare tokens, as the peers have done. To be called after that use is charged to `own`.

        Otherwise it would leave a debt at this gateway alone, and its clients would wait while those of the peers pass.
        """
        parent = self.parent
        if parent is not None and parent.delay(now) <= 0.0:
            self._entitled.bound_debt()
            if self.own.delay(now) > 0.0 and parent.spare(now):
                self._top_up(parent, PEER_INTERVALS, now)

    def take_back(self, amount: float, now: float) -> None:
        self.own.take_back(amount, now)
        if self.parent is not None:
            self.parent.used -= amount
            self.parent.take_back(amount, now)

    def delay(self, now: float, promised: float = 0.0, ahead: float = 0.0) -> float:
        delay = self.own.delay(now, promised, ahead)
        if self.parent is not None:
            above = self.parent.delay(now, promised, ahead)
            if above > delay:
                return max(delay, min(above, self._entitled.seconds_to_pay(now, promised + ahead)))
        return delay

    def rate(self, now: float) -> float | None:
        return self.own.rate(now)

    def tokens(self, now: float) -> float | None:
        return self.own.tokens(now)

    def used_ratio(self, now: float) -> float:
        return self.own.used_ratio(now)

    def fetch_allowance(self, now: float, promised: float = 0.0, among: int = 1) -> float:
        """While the parent's bucket is empty, a group that borrows may request a portion only."""
        allowance = self.own.fetch_allowance(now, promised, among)
        if self.parent is not None and allowance > self.portion:
            return max(self.portion, min(allowance, self.parent.fetch_allowance(now, promised, among)))
        return allowance

    def saved(self, now: float) -> float:
        return self.own.saved(now)

    @property
    def portion(self) -> float:
        return self.own.portion

    @property
    def capacity(self) -> float:
        return self.own.capacity

    def set_limit(self, limit: float, now: float) -> None:
        self.own.set_limit(limit, now)
        self._limit = limit

    def forgive(self, now: float) -> None:
        self.own.forgive(now)

    def idle(self, now: float) -> bool:
        return self.own.idle(now)

    def dump(self, now: float) -> list[PastUse]:
        return self.own.dump(now)

    def restore(self, used: Sequence[PastUse], now: float) -> None:
        self.own.restore(used, now)
