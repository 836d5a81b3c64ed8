"""The rate of the last minute, as in Kafka's `BytesInPerSec`: `Meter.oneMinuteRate` of Yammer Metrics.

Every five seconds the recorded amount enters an exponentially weighted moving average (`EWMA`). Between these ticks the rate
does not change. Times inside are integral milliseconds, so that ticks neither drift nor get lost.
"""

from collections.abc import Sequence
from math import exp
from typing import Final

from gateway.quotas.meter import PastUse

TICK_MS: Final = 5_000
_MINUTE: Final = 60.0
ALPHA: Final = 1.0 - exp(-5.0 / 60.0)
"""The weight of the latest five seconds."""

FADED_SECONDS: Final = 300.0
"""After this time, less than 1 % of an amount counts."""


class OneMinuteRate:
    """A rate per second; 0.0 during its first five seconds."""

    __slots__ = ("_rate", "_since_ms", "_started", "_uncounted")

    def __init__(self, now: float) -> None:
        self._since_ms = round(now * 1000.0)
        self._uncounted = 0.0
        self._rate = 0.0
        self._started = False

    def record(self, amount: float, now: float) -> None:
        self._tick(now)
        self._uncounted += amount

    def measure(self, now: float) -> float:
        """The rate as of the last tick."""
        self._tick(now)
        return self._rate

    def kept(self, now: float) -> float:
        """The amount of one minute at the current rate, and the amount since the last tick."""
        self._tick(now)
        return self._rate * _MINUTE + self._uncounted

    def dump(self, now: float) -> list[PastUse]:
        """The rate (per second) as of the last tick, if any, and the amount since that tick."""
        self._tick(now)
        age = now - self._since_ms / 1000.0
        uncounted = PastUse(age, 0.0, self._uncounted)
        return [PastUse(age, age, self._rate), uncounted] if self._started else [uncounted]

    def restore(self, used: Sequence[PastUse], now: float) -> None:
        """Replace the rate by a dump. The next call makes up for missed ticks."""
        self._since_ms = round((now - used[-1].began) * 1000.0) if used else round(now * 1000.0)
        self._uncounted = used[-1].amount if used else 0.0
        self._started = len(used) > 1
        self._rate = used[0].amount if self._started else 0.0

    def _tick(self, now: float) -> None:
        """Make up for the ticks since the last call. An interval ends after more than five seconds, not exactly five."""
        now_ms = round(now * 1000.0)
        age = now_ms - self._since_ms
        if age <= TICK_MS:
            return
        self._since_ms = now_ms - age % TICK_MS
        instant = self._uncounted / (TICK_MS / 1000.0)
        self._uncounted = 0.0
        self._rate = self._rate + ALPHA * (instant - self._rate) if self._started else instant
        self._started = True
        self._rate *= (1.0 - ALPHA) ** (age // TICK_MS - 1)  # intervals without any amount
