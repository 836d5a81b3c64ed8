"""Long work within the event loop: its slices, its result, and its end."""

import asyncio
from itertools import pairwise

import pytest

from gateway import time_slices
from gateway.steps import Steps, at_once
from gateway.time_slices import in_slices


def numbers(taken: list[int]) -> Steps[str]:
    for number in range(1_000):
        taken.append(number)
        yield
    return "done"


@pytest.fixture
def one_step_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slices, "SLICE_SECONDS", 0.0)


def test_all_steps_at_once_return_the_result() -> None:
    taken: list[int] = []
    assert at_once(numbers(taken)) == "done"
    assert len(taken) == 1_000


@pytest.mark.usefixtures("one_step_a_slice")
async def test_event_loop_serves_others_between_slices() -> None:
    taken: list[int] = []
    task = asyncio.create_task(in_slices(numbers(taken)))
    seen = []
    while not task.done():
        seen.append(len(taken))
        await asyncio.sleep(0)
    assert await task == "done"
    assert max(after - before for before, after in pairwise(seen)) == 1


async def test_slice_has_many_short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slices, "SLICE_SECONDS", 3600.0)
    taken: list[int] = []
    task = asyncio.create_task(in_slices(numbers(taken)))
    await asyncio.sleep(0)
    assert not taken
    await asyncio.sleep(0)
    assert len(taken) == 1_000
    assert await task == "done"


async def test_error_of_a_step_reaches_the_caller() -> None:
    def fails() -> Steps[None]:
        yield
        raise KeyError("x")

    with pytest.raises(KeyError):
        await in_slices(fails())


@pytest.mark.usefixtures("one_step_a_slice")
async def test_cancelled_work_can_be_finished_at_once() -> None:
    taken: list[int] = []
    steps = numbers(taken)
    task = asyncio.create_task(in_slices(steps))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 0 < len(taken) < 1_000
    assert at_once(steps) == "done"
    assert taken == list(range(1_000))
