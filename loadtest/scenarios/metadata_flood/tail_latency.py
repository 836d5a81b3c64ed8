"""Compares the 99th percentile of latencies under two conditions that took turns."""

from collections.abc import Sequence

import numpy as np

from loadtest.bench.estimate import Estimate, Floats, Rounds, over_rounds


def p99(samples: Floats) -> float:
    return float(np.percentile(samples, 99))


def ratio_of_p99(numerator: Sequence[Floats], denominator: Sequence[Floats]) -> Estimate:
    """The p99 of all samples of one condition, as a multiple of the other's. The n-th samples of both are those of round n."""

    def of(rounds: Rounds) -> float:
        above, below = (np.concatenate([side[number] for number in rounds]) for side in (numerator, denominator))
        return p99(above) / p99(below)

    return over_rounds(len(numerator), of)
