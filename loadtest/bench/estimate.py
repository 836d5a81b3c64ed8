"""A figure of several rounds, with its interval of confidence."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rounds = NDArray[np.int64]
"""The numbers of rounds, some of them several times."""

_SEED = 1


@dataclass(frozen=True)
class Estimate:
    """A value with its interval of 95 % confidence."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f})"


def over_rounds(count: int, figure: Callable[[Rounds], float], resamples: int = 1_000) -> Estimate:
    """The figure of all rounds. The interval comes from a bootstrap that draws whole rounds.

    Samples within a round depend on each other, for a pause of the broker delays many requests.
    """
    chance = np.random.default_rng(_SEED)
    found = [figure(chance.integers(count, size=count)) for _ in range(resamples)]
    low, high = np.percentile(found, (2.5, 97.5))
    return Estimate(figure(np.arange(count)), float(low), float(high))
