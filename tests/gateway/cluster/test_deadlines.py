"""Time limits of connections to brokers."""

import asyncio

import pytest

from gateway.cluster.deadlines import Deadlines

LONG = 3600.0
SHORT = 0.01


@pytest.fixture
def deadlines():
    return Deadlines()


async def never():
    await asyncio.Event().wait()


async def late(deadlines, seconds=SHORT):
    with pytest.raises(TimeoutError):
        await deadlines.keep(never(), seconds)


async def test_result_of_a_timely_operation_is_returned(deadlines):
    assert await deadlines.keep(asyncio.sleep(0, "done"), LONG) == "done"


async def test_error_of_an_operation_is_raised(deadlines):
    async def fails():
        raise ConnectionRefusedError

    with pytest.raises(ConnectionRefusedError):
        await deadlines.keep(fails(), LONG)


async def test_late_operation_is_cancelled(deadlines):
    cancelled = []

    async def note():
        try:
            await never()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with pytest.raises(TimeoutError):
        await deadlines.keep(note(), SHORT)
    assert cancelled == [True]


async def test_task_goes_on_after_a_late_operation(deadlines):
    await late(deadlines)
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0
    assert await deadlines.keep(asyncio.sleep(0, "next"), LONG) == "next"


async def test_cancelled_task_is_not_reported_as_late(deadlines):
    task = asyncio.create_task(deadlines.keep(never(), LONG))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_short_limit_counts_behind_a_long_one(deadlines):
    patient = asyncio.create_task(deadlines.keep(never(), LONG))
    await asyncio.sleep(0)
    await late(deadlines)
    assert not patient.done()
    patient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await patient


async def test_long_limit_counts_after_a_short_one(deadlines):
    await asyncio.gather(*(late(deadlines, SHORT * number) for number in (3, 1, 2)))


async def test_limit_counts_after_a_timely_operation(deadlines):
    await deadlines.keep(asyncio.sleep(0), SHORT)
    await late(deadlines)


async def test_operation_that_ignores_its_cancellation_may_end(deadlines):
    async def stubborn():
        try:
            await never()
        except asyncio.CancelledError:
            return "done"

    assert await deadlines.keep(stubborn(), SHORT) == "done"
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0
