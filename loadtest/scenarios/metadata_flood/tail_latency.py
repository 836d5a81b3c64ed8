"""Compares the 99th percentile of latencies under two conditions that took turns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_RESAMPLES = 1_000
_SEED = 1


@dataclass(frozen=True)
class Ratio:
    """`value` with its interval of 95 % confidence."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} (95 % interval: {self.low:.3f} to {self.high:.3f})"


def p99(samples: Floats) -> float:
    return float(np.percentile(samples, 99))


def ratio_of_p99(numerator: Sequence[Floats], denominator: Sequence[Floats]) -> Ratio:
    """The p99 of all samples of one condition, as a multiple of the other's.

    The n-th samples of both are those of round n. The interval comes from a bootstrap that draws whole rounds. Samples within
    a round depend on each other, for a pause of the broker delays many requests.
    """
    chance = np.random.default_rng(_SEED)
    rounds = len(numerator)
    found = []
    for _ in range(_RESAMPLES):
        drawn = chance.integers(rounds, size=rounds)
        found.append(_ratio([numerator[number] for number in drawn], [denominator[number] for number in drawn]))
    low, high = np.percentile(found, (2.5, 97.5))
    return Ratio(_ratio(numerator, denominator), float(low), float(high))


def _ratio(numerator: Sequence[Floats], denominator: Sequence[Floats]) -> float:
    return p99(np.concatenate(numerator)) / p99(np.concatenate(denominator))
