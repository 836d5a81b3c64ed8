"""The ratio of two p99, and its interval."""

import numpy as np
import pytest

from loadtest.bench.estimate import Floats
from loadtest.scenarios.metadata_flood.steady_producer import Latencies
from loadtest.scenarios.metadata_flood.tail_latency import p99, ratio_of_p99


def rounds(count: int, scale: float = 1.0) -> list[Floats]:
    """Rounds with the same 100 latencies in each: 1 to 100, times `scale`."""
    return [np.arange(1.0, 101.0) * scale] * count


def test_ratio_of_equal_rounds_has_no_width() -> None:
    found = ratio_of_p99(rounds(8, 1.2), rounds(8))
    assert (found.value, found.low, found.high) == pytest.approx((1.2, 1.2, 1.2))


def test_one_slow_round_widens_interval() -> None:
    found = ratio_of_p99([*rounds(7), *rounds(1, 10.0)], rounds(8))
    assert found.low == pytest.approx(1.0)
    assert found.low < found.value < found.high


def test_slow_round_of_both_conditions_cancels() -> None:
    both = [*rounds(7), *rounds(1, 10.0)]
    found = ratio_of_p99(both, both)
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


def test_requests_belong_to_turn_in_which_they_were_sent() -> None:
    latencies = Latencies(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.1, 0.2, 5.0, 0.4]))
    assert latencies.between(2.0, 4.0).tolist() == [0.2, 5.0]
    assert p99(latencies.seconds) > 4.0
