"""A meter on the clock of a client that would have waited for each throttle.

This clock runs ahead of the monotonic one by all throttle times so far. A charge comes at the time of a client that waits, so
every algorithm gives that client's throttle times.
"""

from collections.abc import Sequence

from gateway.quotas.meter import Meter, PastUse


class StretchedMeter(Meter):
    """`inner` is new. `forgive` waits on the meter's own clock until the debt is over. All other times are monotonic."""

    __slots__ = ("_ahead", "_inner")

    def __init__(self, inner: Meter, limit: float) -> None:
        super().__init__(limit)
        self._inner = inner
        self._ahead = 0.0

    def forgive(self, now: float) -> None:
        self._ahead += self._inner.delay(now + self._ahead)

    def charge(self, amount: float, now: float) -> float:
        return self._inner.charge(amount, now + self._ahead)

    def delay(self, now: float, promised: float = 0.0, ahead: float = 0.0) -> float:
        return self._inner.delay(now + self._ahead, promised, ahead)

    def rate(self, now: float) -> float | None:
        return self._inner.rate(now + self._ahead)

    def tokens(self, now: float) -> float | None:
        return self._inner.tokens(now + self._ahead)

    def balance(self, now: float) -> float:
        return self._inner.balance(now + self._ahead)

    def used_ratio(self, now: float) -> float:
        return self._inner.used_ratio(now + self._ahead)

    def fetch_allowance(self, now: float, promised: float = 0.0, among: int = 1) -> float:
        return self._inner.fetch_allowance(now + self._ahead, promised, among)

    @property
    def takes_back(self) -> bool:
        """False: each response over a shadow limit is sent."""
        return False

    @property
    def capacity(self) -> float:
        return self._inner.capacity

    def set_limit(self, limit: float, now: float) -> None:
        self._inner.set_limit(limit, now + self._ahead)
        self._limit = limit

    def idle(self, now: float) -> bool:
        return self._inner.idle(now + self._ahead)

    def dump(self, now: float) -> list[PastUse]:
        return self._inner.dump(now + self._ahead)

    def restore(self, used: Sequence[PastUse], now: float) -> None:
        self._inner.restore(used, now + self._ahead)
