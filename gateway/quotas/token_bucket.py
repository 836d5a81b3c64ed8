"""A token bucket that may go below zero: KIP-599's algorithm, here for bytes as well.

Source: `org.apache.kafka.common.metrics.stats.TokenBucket`. The bucket allows the same burst as Kafka's sampled window and then
flows evenly at the quota. The window stops until the burst's sample has left it.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

from gateway.quotas.meter import Meter, PastUse, Window, positive

MAX_DEBT_SECONDS: Final = 3600.0
"""The longest debt of a client quota. A client that sends 100 MB at a quota of 1 KiB/s would otherwise mute all clients of its
entity for a day."""


class TokenBucket(Meter):
    """Refilled at `limit` per second up to `limit * burst_seconds`; starts full; never below `-limit * max_debt_seconds`.

    The burst is at least `least_burst` units.
    """

    __slots__ = ("_burst", "_burst_seconds", "_last", "_least_burst", "_max_debt_seconds", "_tokens")

    def __init__(
        self, limit: float, burst_seconds: float, now: float, max_debt_seconds: float = inf, least_burst: float = 0.0
    ) -> None:
        super().__init__(limit)
        if burst_seconds <= 0:
            raise ValueError(f"burst_seconds {burst_seconds} must be positive")
        self._burst_seconds = burst_seconds
        self._least_burst = least_burst
        self._max_debt_seconds = max_debt_seconds
        self._burst = max(limit * burst_seconds, least_burst)
        self._tokens = self._burst
        self._last = now

    @classmethod
    def for_bytes(cls, limit: float, window: Window, now: float) -> "TokenBucket":
        """The burst of Kafka's window of bytes: all but one of its samples."""
        return cls(limit, max(window.samples - 1, 1) * window.seconds, now, MAX_DEBT_SECONDS)

    @classmethod
    def for_mutations(cls, limit: float, window: Window, now: float) -> "TokenBucket":
        """KIP-599's burst: all samples of the window. Kafka's debt has no bound."""
        return cls(limit, window.length, now, MAX_DEBT_SECONDS)

    def charge(self, amount: float, now: float) -> float:
        tokens = self._tokens + (now - self._last) * self._limit
        if tokens > self._burst:
            tokens = self._burst
        tokens -= amount
        if tokens > self._burst:
            tokens = self._burst
        self._last = now
        if tokens >= 0.0:
            self._tokens = tokens
            return 0.0
        delay = -tokens / self._limit
        if delay > self._max_debt_seconds:
            delay = self._max_debt_seconds
            tokens = -self._limit * delay
        self._tokens = tokens
        return delay

    def delay(self, now: float, promised: float = 0.0, ahead: float = 0.0) -> float:
        return max(0.0, (promised + ahead - self.tokens(now)) / self._limit)

    def tokens(self, now: float) -> float:
        return min(self._burst, self._tokens + (now - self._last) * self._limit)

    def used_ratio(self, now: float) -> float:
        """The used part of the burst; above 1.0 for a debt."""
        return 1.0 - self.tokens(now) / self._burst

    def rate(self, now: float) -> None:  # noqa: ARG002
        return

    def fetch_allowance(self, now: float, promised: float = 0.0, among: int = 1) -> float:
        """An equal part of the free balance, at least a slice of the quota."""
        return max((self.tokens(now) - promised) / among, self.portion)

    @property
    def capacity(self) -> float:
        return self._burst

    def set_limit(self, limit: float, now: float) -> None:
        """Tokens and debts are kept, up to the new burst and the longest debt."""
        tokens = self.tokens(now)
        self._limit = positive(limit)
        self._last = now
        self._burst = max(limit * self._burst_seconds, self._least_burst)
        self._tokens = max(min(tokens, self._burst), -limit * self._max_debt_seconds)

    def forgive(self, now: float) -> None:
        self._tokens = max(0.0, self.tokens(now))
        self._last = now

    def idle(self, now: float) -> bool:
        return self.tokens(now) >= self._burst

    def dump(self, now: float) -> list[PastUse]:
        """The missing tokens, as if they had been used just now: the bucket does not know when they were."""
        missing = self._burst - self.tokens(now)
        return [PastUse(0.0, 0.0, missing)] if missing > 0.0 else []

    def restore(self, used: Sequence[PastUse], now: float) -> None:
        self._tokens = self._burst
        self._last = now - used[0].began if used else now
        for each in used:
            self.charge(each.amount, now - each.ended)
