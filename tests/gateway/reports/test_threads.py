"""Several threads at once: results in order, and an end after the first exception."""

from threading import Event

import pytest

from gateway.reports.job.threads import in_threads, side_by_side


def test_results_come_in_the_order_of_the_items() -> None:
    assert in_threads(lambda number: number * 10, range(20), 3) == [number * 10 for number in range(20)]


def test_no_item_begins_after_an_exception() -> None:
    """One that began before the exception was noticed ends first."""
    begun: list[int] = []

    def fail_at_two(number: int) -> None:
        begun.append(number)
        if number == 2:
            raise LookupError
        if number > 2:
            Event().wait(0.1)

    with pytest.raises(LookupError):
        in_threads(fail_at_two, range(50), 1)
    assert begun[:3] == [0, 1, 2]
    assert len(begun) < 50


def test_exception_of_the_first_work_is_raised() -> None:
    def fail(error: Exception) -> None:
        raise error

    with pytest.raises(LookupError):
        side_by_side(lambda: fail(LookupError()), lambda: fail(ValueError()))
