"""The rate of the last minute, as Kafka's `BytesInPerSec` has it: `Meter.oneMinuteRate` of Yammer Metrics.

Every five seconds what was recorded in them is folded into an exponentially weighted mean (`EWMA`). In between the rate stands
still. Times inside are integral milliseconds, so that ticks neither drift nor get lost.
"""

from collections.abc import Sequence
from math import exp
from typing import Final

from gateway.quotas.meter import PastUse

TICK_MS: Final = 5_000
_MINUTE: Final = 60.0
ALPHA: Final = 1.0 - exp(-5.0 / 60.0)
"""The weight of the newest five seconds."""


class OneMinuteRate:
    """A rate per second; 0.0 until five seconds have gone by since it began."""

    __slots__ = ("_rate", "_since_ms", "_started", "_uncounted")

    def __init__(self, now: float) -> None:
        self._since_ms = round(now * 1000.0)
        self._uncounted = 0.0
        self._rate = 0.0
        self._started = False

    def record(self, amount: float, now: float) -> None:
        """Add `amount` to the interval that `now` is in."""
        self._tick(now)
        self._uncounted += amount

    def measure(self, now: float) -> float:
        """The rate as of the last tick."""
        self._tick(now)
        return self._rate

    def kept(self, now: float) -> float:
        """A minute's worth of the rate, and what came since the last tick."""
        self._tick(now)
        return self._rate * _MINUTE + self._uncounted

    def dump(self, now: float) -> list[PastUse]:
        """The rate (per second) as of the last tick, if there was one, and what came since then."""
        self._tick(now)
        age = now - self._since_ms / 1000.0
        uncounted = PastUse(age, 0.0, self._uncounted)
        return [PastUse(age, age, self._rate), uncounted] if self._started else [uncounted]

    def restore(self, spent: Sequence[PastUse], now: float) -> None:
        """Begin with that rate; ticks that were missed come with the next look."""
        self._since_ms = round((now - spent[-1].began) * 1000.0) if spent else round(now * 1000.0)
        self._uncounted = spent[-1].amount if spent else 0.0
        self._started = len(spent) > 1
        self._rate = spent[0].amount if self._started else 0.0

    def _tick(self, now: float) -> None:
        """Catch up with the ticks since the last look. An interval is over once more than five seconds have gone by."""
        now_ms = round(now * 1000.0)
        age = now_ms - self._since_ms
        if age <= TICK_MS:
            return
        self._since_ms = now_ms - age % TICK_MS
        instant = self._uncounted / (TICK_MS / 1000.0)
        self._uncounted = 0.0
        self._rate = self._rate + ALPHA * (instant - self._rate) if self._started else instant
        self._started = True
        self._rate *= (1.0 - ALPHA) ** (age // TICK_MS - 1)  # intervals in which nothing came
