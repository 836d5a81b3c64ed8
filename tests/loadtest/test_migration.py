"""The figures of the scenario that moves quotas: rates of seconds and of ten seconds, as parts of the old limit."""

import pytest

from loadtest.scenarios.migration import LIMIT, QUOTAS, Move, rates, step, table

STEADY = [(second / 4, second * LIMIT // 4) for second in range(81)]
"""The old limit for 20 seconds, in four samples a second."""


def test_steady_rate_is_the_limit() -> None:
    found = step("steady", STEADY, 0.0, 20.0)
    assert (found.mean, found.highest_second, found.highest_window) == (1.0, 1.0, 1.0)


def test_burst_shows_in_both_rates() -> None:
    burst = [(when, total + (LIMIT if when >= 15.0 else 0)) for when, total in STEADY]
    found = step("burst", burst, 10.0, 20.0)
    assert (found.mean, found.highest_second, found.highest_window) == (1.1, 2.0, 1.1)


def test_windows_reach_back_before_the_step() -> None:
    """A burst at the end of a step must not be hidden in the next step, which is shorter than the window."""
    idle = [(when, 0 if when < 12.0 else int((when - 12.0) * LIMIT)) for when, _ in STEADY]
    assert max(rates(idle, 14.0, 16.0, 10.0)) == pytest.approx(0.4 * LIMIT)
    assert rates(STEADY, 0.0, 5.0, 10.0) == []


def test_table_names_quotas_that_differ() -> None:
    of_step = step("steady", STEADY, 0.0, 20.0)
    lines = table([Move("a burst", 20, 3, False, (of_step,))]).splitlines()
    assert lines[0] == "a burst: 20 quotas, DIFFERENT before and after; 3 lines while they are lifted"
    assert lines[4] == "| steady | 20 | 1.000 | 1.000 | 1.000 |"


def test_scenario_has_20_quotas_of_all_kinds() -> None:
    assert sum(len(values) for _, values in QUOTAS) == 20
    assert len({key for _, values in QUOTAS for key in values}) == 5
    assert {kind for parts, _ in QUOTAS for kind in parts} == {"user", "client-id", "ip"}
