"""Background tasks that fail, end and are cancelled."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from gateway import background
from gateway.background import LONG_LIFE_SECONDS, BackgroundTasks, Backoff


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that fails is started again at once."""
    monkeypatch.setattr(background, "FIRST_SECONDS", 0.0)


def failing(times: int, then: asyncio.Event) -> Callable:
    """Return a task that fails `times` times, then sets `well` and waits for ever."""
    left = [TypeError("odd")] * times

    async def run() -> None:
        if left:
            raise left.pop()
        then.set()
        await asyncio.Event().wait()

    return run


async def test_failed_task_is_logged_counted_restarted(impatient: None, caplog: pytest.LogCaptureFixture) -> None:
    restarts, well, other = Counter(), asyncio.Event(), asyncio.Event()
    async with BackgroundTasks(restarts) as tasks:
        tasks.start("other", failing(0, other))
        tasks.start("odd", failing(3, well))
        await asyncio.wait_for(well.wait(), 20)
        await asyncio.wait_for(other.wait(), 20)
    assert restarts == {"odd": 3, "other": 0}
    assert sum("background task failed, it is started again" in record.getMessage() for record in caplog.records) == 3
    assert "TypeError: odd" in caplog.text


async def test_failure_in_a_group_restarts_the_whole_run(impatient: None) -> None:
    """Its TaskGroup cancels the run, which is no cancellation of the background task."""
    restarts, well = Counter(), asyncio.Event()
    inner = failing(1, well)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(inner())
            await asyncio.Event().wait()

    async with BackgroundTasks(restarts) as tasks:
        tasks.start("group", run)
        await asyncio.wait_for(well.wait(), 20)
    assert restarts == {"group": 1}


async def test_end_is_called_once_before_cancel_returns(impatient: None) -> None:
    order, well = [], asyncio.Event()
    async with BackgroundTasks(Counter()) as tasks:
        first = tasks.start("first", failing(0, well), lambda: order.append("first"))
        second = tasks.start("second", failing(0, asyncio.Event()), lambda: order.append("second"))
        await well.wait()
        second.cancel()
        first.cancel()
        assert order == ["second", "first"]
        second.cancel()
    assert order == ["second", "first"]
    assert first.task.cancelled()


async def test_cancel_ends_a_task_that_waits_for_its_restart() -> None:
    ended, failed = [], asyncio.Event()

    async def run() -> None:
        failed.set()
        raise TypeError("odd")

    async with BackgroundTasks(Counter()) as tasks:
        waiting = tasks.start("odd", run, lambda: ended.append(True))
        await failed.wait()
        await asyncio.sleep(0)
    assert (ended, waiting.task.cancelled()) == ([True], True)


async def test_failure_while_it_ends_is_not_restarted(caplog: pytest.LogCaptureFixture) -> None:
    restarts, begun = Counter(), asyncio.Event()

    async def run() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise TypeError("odd")

    def end() -> None:
        raise ValueError("as odd")

    async with BackgroundTasks(restarts) as tasks:
        tasks.start("odd", run, end)
        await begun.wait()
    assert restarts == {"odd": 0}
    assert caplog.text.count("background task failed while it ended: odd") == 2


async def test_task_that_returns_is_not_restarted() -> None:
    restarts, runs = Counter(), []

    async def run() -> None:
        runs.append(True)

    async with BackgroundTasks(restarts) as tasks:
        await tasks.start("short", run).task
    assert (restarts, runs) == ({"short": 0}, [True])


async def test_task_that_swallows_a_cancel_is_cancelled_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "CANCEL_AGAIN_SECONDS", 0.01)
    began = asyncio.Event()

    async def run() -> None:
        began.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    async with asyncio.timeout(20), BackgroundTasks(Counter()) as tasks:
        tasks.start("deaf", run)
        await began.wait()
    assert "background task does not end, it is cancelled again: deaf" in caplog.text


def test_early_deaths_lengthen_the_backoff() -> None:
    backoff = Backoff()
    assert [backoff.seconds(0.1) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_long_life_resets_the_backoff() -> None:
    backoff = Backoff()
    backoff.seconds(0.1)
    backoff.seconds(0.1)
    assert backoff.seconds(LONG_LIFE_SECONDS) == 0.0
    assert backoff.seconds(0.1) == 0.5
