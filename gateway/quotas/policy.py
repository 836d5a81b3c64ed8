"""The state that all buckets of a kind share: settings, the moments of their marks, and the sum of their decisions."""

from bisect import bisect_left
from math import ceil
from typing import Final

from gateway.quotas.kinds import KINDS
from gateway.quotas.meter import Window
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.snapshot import THROTTLE_BOUNDS

MIN_MARKS: Final = 2
MAX_MARKS: Final = 121
"""The totals that a bucket remembers for its rate."""


class Policy:
    """The settings of the kinds with one quota window, and the moments at which their buckets mark their totals.

    The moments are a ring; `newest` is the position of the last one. They cover the quota window. In a window of more than
    `MAX_MARKS` seconds they are several ticks apart. `marking` is True if buckets have to mark their totals at this tick.
    """

    __slots__ = ("_ticks", "_ticks_a_mark", "enforce", "marking", "newest", "span", "times", "window")

    def __init__(self, enforce: bool, window: Window, now: float) -> None:
        self.enforce = enforce
        self.window = window
        self._ticks_a_mark = max(ceil(window.length / MAX_MARKS), 1)
        self._ticks = 0
        marks = max(ceil(window.length / self._ticks_a_mark), MIN_MARKS)
        self.span = float((marks - 1) * self._ticks_a_mark)
        self.times = [now] * marks
        self.newest = 0
        self.marking = False

    @property
    def oldest(self) -> int:
        return (self.newest + 1) % len(self.times)

    def tick(self, now: float) -> None:
        """To be called once a second, before the buckets mark their totals at `newest`."""
        self._ticks = (self._ticks + 1) % self._ticks_a_mark
        self.marking = self._ticks == 0
        if self.marking:
            self.newest = self.oldest
            self.times[self.newest] = now

    def per_second(self, amount: int, now: float) -> float:
        """The rate of an amount that was used since the oldest moment."""
        return amount / max(now - self.times[self.oldest], self.span)

    def follow(self, before: "Policy", now: float) -> list[int]:
        """Take over the moments of another policy that lie in this window. Returns the position that each had there."""
        oldest = before.oldest
        positions = [*range(oldest, len(before.times)), *range(oldest)]
        recent = [position for position in positions if now - before.times[position] <= self.window.length][-len(self.times) :]
        recent = recent or [before.newest]
        kept = [recent[0]] * (len(self.times) - len(recent)) + recent
        self.times = [before.times[position] for position in kept]
        self.newest = len(kept) - 1
        return kept


def policies_of(settings: QuotaSettings, now: float) -> dict[str, Policy]:
    """The policy of each kind. Kinds with equal windows share one, so that a tick visits few."""
    windows = {name: settings.window_of(kind) for name, kind in KINDS.items()}
    policies = {window: Policy(settings.enforce, window, now) for window in windows.values()}
    return {name: policies[window] for name, window in windows.items()}


def follow_windows(policies: dict[str, Policy], settings: QuotaSettings, now: float) -> dict[str, list[int]]:
    """Give the kinds of each changed window a policy that continues the moments of the one before.

    Returns the positions that these moments had before, by kind.
    """
    changed: dict[tuple[Policy, Window], tuple[Policy, list[int]]] = {}
    positions: dict[str, list[int]] = {}
    for name, kind in KINDS.items():
        before, window = policies[name], settings.window_of(kind)
        before.enforce = settings.enforce
        if window == before.window:
            continue
        if (before, window) not in changed:
            policy = Policy(settings.enforce, window, now)
            changed[before, window] = policy, policy.follow(before, now)
        policies[name], positions[name] = changed[before, window]
    return positions


class KindTotals:
    """The throttle decisions of one kind, as a histogram: see `ThrottleTotals`."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(THROTTLE_BOUNDS) + 1)
        self.seconds = 0.0

    def note(self, delay: float) -> None:
        self.counts[bisect_left(THROTTLE_BOUNDS, delay)] += 1
        self.seconds += delay

    def correct(self, delay: float, shorter: float) -> None:
        """Replace a delay that was noted by a shorter one."""
        self.counts[bisect_left(THROTTLE_BOUNDS, delay)] -= 1
        self.counts[bisect_left(THROTTLE_BOUNDS, shorter)] += 1
        self.seconds += shorter - delay
