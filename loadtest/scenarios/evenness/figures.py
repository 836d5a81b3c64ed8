"""Computes from a series of byte counts how evenly a client moves."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SETTLE_SECONDS = 15.0
"""In the first seconds, clients use their burst, so the rates are not limited by the quota."""

_EMPTY = 0.02
"""A second with less than this part of the quota's bytes is empty. Heartbeats and empty responses are not progress."""
_STARVED = 0.1
_BEGUN = 0.1
"""A client has started once it has moved this part of a second's quota. Before that, it only requests metadata."""


@dataclass(frozen=True)
class Figures:
    """A run after its first 15 s. Rates are parts of the quota; `gap` is the longest time without progress in seconds.

    `empty` counts seconds without progress; `starved` counts seconds with less than a tenth of the quota, including empty
    ones. With stop-and-go throttling, a client may complete one request in each second of its throttle time.
    """

    seconds: int
    mean: float
    deviation: float
    empty: int
    starved: int
    gap: float


class TooShortError(ValueError):
    """The series is too short for any figures."""


def per_second(series: Sequence[tuple[float, int]], seconds: float) -> list[float]:
    """Bytes/s in each whole second of the first `seconds` after the client started.

    `series` is (time, bytes so far), with more than one sample a second. A second ends at the nearest sample, and its bytes
    are divided by the real duration. Raises `TooShortError`.
    """
    rates = []
    index = 0
    while index < len(series) - 1:
        when, so_far = series[index]
        if when - series[0][0] + 1.0 > seconds + 0.5:
            break
        following = min(range(index + 1, len(series)), key=lambda other: abs(series[other][0] - when - 1.0))
        then, total = series[following]
        if then - when < 0.5:
            break
        rates.append((total - so_far) / (then - when))
        index = following
    if not rates:
        raise TooShortError("the samples cover less than a second")
    return rates


def begun(series: Sequence[tuple[float, int]], quota: float) -> list[tuple[float, int]]:
    """The series from the last sample before the client started. Raises `TooShortError` if it never started."""
    for index, (_, total) in enumerate(series):
        if total > quota * _BEGUN:
            return list(series[max(0, index - 1) :])
    raise TooShortError("the client moved almost no bytes")


def figures(series: Sequence[tuple[float, int]], quota: float, seconds: float) -> Figures:
    """The figures of (time, bytes so far) for a quota in bytes/s, over the first `seconds`. Raises `TooShortError`."""
    started = begun(series, quota)
    rates = per_second(started, seconds)[int(SETTLE_SECONDS) :]
    if len(rates) < 2:
        raise TooShortError(f"the run ended within {SETTLE_SECONDS:.0f} s")
    origin = started[0][0]
    settled = [sample for sample in started if SETTLE_SECONDS <= sample[0] - origin <= seconds + 0.5]
    return Figures(
        seconds=len(rates),
        mean=statistics.fmean(rates) / quota,
        deviation=statistics.pstdev(rates) / quota,
        empty=sum(rate < _EMPTY * quota for rate in rates),
        starved=sum(rate < _STARVED * quota for rate in rates),
        gap=longest_gap(settled, quota),
    )


def longest_gap(series: Sequence[tuple[float, int]], quota: float) -> float:
    """The longest time in seconds with almost no progress between two samples."""
    longest = 0.0
    since = series[0][0] if series else 0.0
    for (before, had), (now, total) in pairwise(series):
        if (total - had) >= _EMPTY * quota * (now - before):
            since = now
        longest = max(longest, now - since)
    return longest
