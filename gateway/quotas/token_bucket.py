"""A token bucket that may go below zero: KIP-599's, used for bytes as well.

Source: `org.apache.kafka.common.metrics.stats.TokenBucket`. It allows the same burst as Kafka's sampled window but then flows
evenly at exactly the quota, where the window stands still until the burst's sample has left it.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

from gateway.quotas.meter import FETCH_SLICE_SECONDS, Meter, Spent, Window

MAX_DEBT_SECONDS: Final = 3600.0
"""The longest time for which a byte quota can be in debt. A client that sends 100 MB at a quota of 1 KiB/s would else keep all
clients of its entity waiting for a day."""


class TokenBucket(Meter):
    """Refilled at `limit` per second up to `limit * burst_seconds`; starts full; never below `-limit * max_debt_seconds`."""

    __slots__ = ("_burst", "_burst_seconds", "_last", "_limit", "_max_debt_seconds", "_tokens")

    def __init__(self, limit: float, burst_seconds: float, now: float, max_debt_seconds: float = inf) -> None:
        if limit <= 0 or burst_seconds <= 0:
            raise ValueError(f"limit {limit} and burst_seconds {burst_seconds} must be positive")
        self._limit = limit
        self._burst_seconds = burst_seconds
        self._max_debt_seconds = max_debt_seconds
        self._burst = limit * burst_seconds
        self._tokens = self._burst
        self._last = now

    @classmethod
    def for_bytes(cls, limit: float, window: Window, now: float) -> "TokenBucket":
        """The bucket with the burst that Kafka's window of bytes allows: all but one of its samples."""
        return cls(limit, max(window.samples - 1, 1) * window.seconds, now, MAX_DEBT_SECONDS)

    @classmethod
    def for_mutations(cls, limit: float, window: Window, now: float) -> "TokenBucket":
        """KIP-599's own: the burst is what all of the samples allow."""
        return cls(limit, window.samples * window.seconds, now)

    def charge(self, amount: float, now: float) -> float:
        """Take `amount` tokens (negative: give back); return the seconds until the balance is no longer negative."""
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
        """Seconds until the balance, less the bytes that are promised or used before, is no longer negative."""
        return max(0.0, (promised + ahead - self.tokens(now)) / self._limit)

    def tokens(self, now: float) -> float:
        """The balance."""
        return min(self._burst, self._tokens + (now - self._last) * self._limit)

    def balance(self, now: float) -> float:
        """The tokens."""
        return self.tokens(now)

    def used_ratio(self, now: float) -> float:
        """The part of the burst that is used up; above 1.0 for a debt."""
        return 1.0 - self.tokens(now) / self._burst

    def rate(self, now: float) -> None:  # noqa: ARG002
        """No rate is kept: the balance says it all."""
        return

    def fetch_allowance(self, now: float, promised: float = 0.0, among: int = 1) -> float:
        """An equal part of the free balance, or a slice of the quota if that is more."""
        return max((self.tokens(now) - promised) / among, self.portion)

    @property
    def portion(self) -> float:
        """A slice of the quota."""
        return self._limit * FETCH_SLICE_SECONDS

    @property
    def takes_back(self) -> bool:
        """It is sent, and the debt is waited for: nothing is read in vain."""
        return False

    @property
    def capacity(self) -> float:
        """The burst."""
        return self._burst

    def set_limit(self, limit: float, now: float) -> None:
        """Change the quota; tokens and debts are kept, clipped to the new burst."""
        if limit <= 0:
            raise ValueError(f"limit {limit} must be positive")
        self._tokens = self.tokens(now)
        self._last = now
        self._limit = limit
        self._burst = limit * self._burst_seconds
        self._tokens = min(self._tokens, self._burst)

    def forgive(self, now: float) -> None:
        """Cancel a debt."""
        self._tokens = max(0.0, self.tokens(now))
        self._last = now

    def idle(self, now: float) -> bool:
        """Whether it is full: a full bucket remembers nothing."""
        return self.tokens(now) >= self._burst

    def spent(self, now: float) -> list[Spent]:
        """What is missing, as if it had been used just now: where it went before that, is not remembered."""
        missing = self._burst - self.tokens(now)
        return [Spent(0.0, 0.0, missing)] if missing > 0.0 else []

    def replay(self, spent: Sequence[Spent], now: float) -> None:
        """Begin full before all of it, and take it."""
        self._tokens = self._burst
        self._last = now - spent[0].began if spent else now
        for each in spent:
            self.charge(each.amount, now - each.ended)
