"""The settings and the moments that all buckets of a kind share."""

from math import ceil
from typing import Final

from gateway.quotas.meter import Window

MIN_MARKS: Final = 2
MAX_MARKS: Final = 121
"""Totals that a bucket remembers for its rate."""


class Policy:
    """The settings that all buckets of one kind share, and the moments of their marks.

    Each bucket marks its total at these moments, in a ring: `newest` is the last mark's place. The marks cover the quota
    window. In a window of more than `MAX_MARKS` seconds they are several ticks apart.
    """

    __slots__ = ("_ticks", "_ticks_a_mark", "_window_seconds", "enforce", "newest", "span", "times")

    def __init__(self, enforce: bool, window: Window, now: float) -> None:
        self.enforce = enforce
        self._window_seconds = window.samples * window.seconds
        self._ticks_a_mark = max(ceil(self._window_seconds / MAX_MARKS), 1)
        self._ticks = 0
        marks = max(ceil(self._window_seconds / self._ticks_a_mark), MIN_MARKS)
        self.span = float((marks - 1) * self._ticks_a_mark)
        self.times = [now] * marks
        self.newest = 0

    @property
    def oldest(self) -> int:
        """The place of the oldest mark."""
        return (self.newest + 1) % len(self.times)

    def tick(self, now: float) -> bool:
        """A second is over. True: buckets are to mark their totals now, at `newest`."""
        self._ticks = (self._ticks + 1) % self._ticks_a_mark
        if self._ticks:
            return False
        self.newest = self.oldest
        self.times[self.newest] = now
        return True

    def follow(self, before: "Policy", now: float) -> list[int]:
        """Take over the moments of another policy that lie in this window. Returns the place that each had there."""
        oldest = before.oldest
        places = [*range(oldest, len(before.times)), *range(oldest)]
        recent = [place for place in places if now - before.times[place] <= self._window_seconds][-len(self.times) :]
        recent = recent or [before.newest]
        kept = [recent[0]] * (len(self.times) - len(recent)) + recent
        self.times = [before.times[place] for place in kept]
        self.newest = len(kept) - 1
        return kept
