"""What a series of byte counts says about how evenly a client moves."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SETTLE_SECONDS = 15.0
"""At the start the burst that a quota allows is used up: bytes go as fast as they can."""

_EMPTY = 0.02
"""A second with less than this part of the quota's bytes is empty: heartbeats and empty answers are no progress."""
_STARVED = 0.1
_BEGUN = 0.1
"""A client has begun when it has moved this part of a second's quota: before, it only asks for metadata."""


@dataclass(frozen=True)
class Figures:
    """A run after its first 15 s. Rates are parts of the quota, `gap` is the longest time without progress in seconds.

    `empty` seconds have no progress, `starved` ones (those included) less than a tenth of the quota: under stop-and-go a client
    may get one request through in each second that it waits.
    """

    seconds: int
    mean: float
    deviation: float
    empty: int
    starved: int
    gap: float


class TooShortError(ValueError):
    """The series ends before there is anything to say about it."""


def per_second(series: Sequence[tuple[float, int]], seconds: float) -> list[float]:
    """Return bytes/s in each whole second of the first `seconds` after the client began.

    `series` is (time, bytes so far), sampled more often than once a second; a second ends at the sample next to it and is
    divided by the time that really passed. Raises TooShortError.
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
        raise TooShortError("less than a second was sampled")
    return rates


def begun(series: Sequence[tuple[float, int]], quota: float) -> list[tuple[float, int]]:
    """Return the part of a series from the last sample before the client began. Raises TooShortError where it never did."""
    for index, (_, total) in enumerate(series):
        if total > quota * _BEGUN:
            return list(series[max(0, index - 1) :])
    raise TooShortError("hardly a byte was moved")


def figures(series: Sequence[tuple[float, int]], quota: float, seconds: float) -> Figures:
    """Return the figures of (time, bytes so far) for a quota in bytes/s, over the first `seconds`. Raises TooShortError."""
    started = begun(series, quota)
    rates = per_second(started, seconds)[int(SETTLE_SECONDS) :]
    if len(rates) < 2:
        raise TooShortError(f"it ended within {SETTLE_SECONDS:.0f} s")
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
    """Return the longest time, in seconds, in which next to nothing was moved from one sample to the next."""
    longest = 0.0
    since = series[0][0] if series else 0.0
    for (before, had), (now, total) in pairwise(series):
        if (total - had) >= _EMPTY * quota * (now - before):
            since = now
        longest = max(longest, now - since)
    return longest
