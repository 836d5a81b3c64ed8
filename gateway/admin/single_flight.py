"""Shares one run of a costly function among simultaneous requests."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from gateway import clock

PAUSE_FACTOR: Final = 4.0
MAX_PAUSE_SECONDS: Final = 1.0

_Result = TypeVar("_Result")


class SingleFlight(Generic[_Result]):
    """Runs `make` one at a time. All requests before a run begins share its result, so no result is older than its request.

    Between two runs there is a pause of `PAUSE_FACTOR` times the last run, up to `MAX_PAUSE_SECONDS`. So requests in a loop
    get a fifth of the time.
    """

    def __init__(self, make: Callable[[], Awaitable[_Result]]) -> None:
        self._make = make
        self._next: asyncio.Task[_Result] | None = None
        self._running = asyncio.Lock()
        self._not_before = 0.0

    async def get(self) -> _Result:
        """The result of a run that begins after this call."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._run())
        return await asyncio.shield(self._next)

    async def _run(self) -> _Result:
        async with self._running:
            await asyncio.sleep(self._not_before - clock.monotonic())
            self._next = None  # later requests share the next run
            begun = clock.monotonic()
            try:
                return await self._make()
            finally:
                now = clock.monotonic()
                self._not_before = now + min(PAUSE_FACTOR * (now - begun), MAX_PAUSE_SECONDS)
