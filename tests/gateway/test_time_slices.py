"""Long work within the event loop: its slices, its result, and its end."""

import asyncio

import pytest

from gateway import clock
from gateway.steps import Steps, at_once
from gateway.time_slices import in_slices


def numbers(taken: list[int]) -> Steps[str]:
    for number in range(1_000):
        taken.append(number)
        yield
    return "done"


STEP = 2.0**-14  # 61 us, without rounding


class Loop:
    """A clock on which each step takes `STEP` seconds, and clients take `turn` seconds between two slices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.slices = 100.0, [0]
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)

    def work(self) -> Steps[str]:
        for _ in range(1_000):
            self.now += STEP
            self.slices[-1] += 1
            yield
        return "done"

    async def run(self, turn: float) -> list[int]:
        """The steps of each slice but the last one."""
        task = asyncio.create_task(in_slices(self.work()))
        await asyncio.sleep(0)
        while not task.done():
            self.now += turn
            self.slices.append(0)
            await asyncio.sleep(0)
        assert await task == "done"
        return self.slices[1:-1]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


def test_all_steps_at_once_return_the_result() -> None:
    taken: list[int] = []
    assert at_once(numbers(taken)) == "done"
    assert len(taken) == 1_000


@pytest.mark.parametrize(("turn", "steps"), [(0.0, 2), (2.0**-12, 2), (2.0**-9, 8), (4.0, 17)])
async def test_slices_grow_with_the_load_up_to_a_limit(loop: Loop, turn: float, steps: int) -> None:
    """A slice ends with the first step beyond its end."""
    assert set(await loop.run(turn)) == {steps}


async def test_works_together_take_the_time_of_one_slice(loop: Loop) -> None:
    """Each of them waits for the others' slices, and that wait is no load."""
    works = [asyncio.create_task(in_slices(loop.work())) for _ in range(10)]
    turns = []
    for _ in range(50):
        began = loop.now
        await asyncio.sleep(0)
        turns.append(loop.now - began)
    for work in works:
        work.cancel()
    await asyncio.gather(*works, return_exceptions=True)
    assert turns[1:] == [10 * STEP] * 49
    assert set(await loop.run(0.0)) == {2}


async def test_error_of_a_step_reaches_the_caller() -> None:
    def fails() -> Steps[None]:
        yield
        raise KeyError("x")

    with pytest.raises(KeyError):
        await in_slices(fails())


async def test_cancelled_work_can_be_finished_at_once(loop: Loop) -> None:
    steps = loop.work()
    task = asyncio.create_task(in_slices(steps))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (taken,) = loop.slices
    assert 0 < taken < 1_000
    assert at_once(steps) == "done"
    assert loop.slices == [1_000]
