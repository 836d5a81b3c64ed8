"""Run a coroutine beside a test, and wait for a condition."""

import asyncio
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def running(coroutine):
    task = asyncio.create_task(coroutine)
    yield
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def until(condition):
    """Wait for a condition that nothing announces."""
    async with asyncio.timeout(20.0):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
