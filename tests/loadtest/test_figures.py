"""The figures of a series of byte counts."""

import pytest

from loadtest.scenarios.evenness.figures import TooShortError, begun, figures, longest_gap, per_second

QUOTA = 1000.0
STEP = 0.25


def series(rates: list[float]) -> list[tuple[float, int]]:
    """Return samples at four per second that begin with a second without bytes."""
    samples, total = [(100.0, 0)], 0.0
    for second, rate in enumerate([0.0, *rates]):
        for part in range(1, 5):
            total += rate * STEP
            samples.append((100.0 + second + part * STEP, round(total)))
    return samples


def test_even_client_has_no_deviation() -> None:
    found = figures(series([1000.0] * 30), QUOTA, 30)
    assert (found.seconds, found.mean, found.deviation, found.starved) == (15, 1.0, 0.0, 0)
    assert found.gap == 0.0


def test_stop_and_go_client_has_gaps() -> None:
    found = figures(series([9000.0] * 15 + [4000.0, 0.0, 0.0, 0.0] * 5), QUOTA, 35)
    assert found.mean == pytest.approx(1.0)
    assert found.deviation == pytest.approx(3**0.5)
    assert found.empty == 15
    assert found.gap == pytest.approx(3.0)


def test_trickle_is_starved_but_not_empty() -> None:
    found = figures(series([1000.0] * 15 + [1960.0, 40.0] * 5), QUOTA, 25)
    assert (found.empty, found.starved) == (0, 5)


def test_burst_at_start_is_excluded() -> None:
    assert figures(series([50_000.0] * 15 + [1000.0] * 15), QUOTA, 30).mean == pytest.approx(1.0)


def test_samples_after_the_end_are_excluded() -> None:
    assert figures(series([1000.0] * 30 + [0.0] * 30), QUOTA, 30).empty == 0


def test_rate_is_divided_by_elapsed_time() -> None:
    late = [(0.0, 0), (0.5, 500), (1.1, 1100), (1.6, 1600), (2.1, 2100)]
    assert per_second(late, 2) == pytest.approx([1000.0, 1000.0])


def test_client_starts_with_its_first_real_bytes() -> None:
    assert begun([(0.0, 0), (1.0, 20), (2.0, 30), (3.0, 900)], QUOTA) == [(2.0, 30), (3.0, 900)]


@pytest.mark.parametrize("samples", [[], [(0.0, 0), (1.0, 5)]])
def test_client_without_bytes_is_refused(samples: list[tuple[float, int]]) -> None:
    with pytest.raises(TooShortError, match="almost no bytes"):
        figures(samples, QUOTA, 30)


def test_client_that_left_early_is_refused() -> None:
    with pytest.raises(TooShortError, match="within 15 s"):
        figures(series([1000.0] * 10), QUOTA, 30)


def test_heartbeats_are_no_progress() -> None:
    assert longest_gap([(0.0, 0), (1.0, 1000), (2.0, 1010), (3.0, 1020), (4.0, 2000)], QUOTA) == 2.0
