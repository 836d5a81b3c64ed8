"""Ends operations of tasks that take too long.

`asyncio.timeout` costs 15 us for each operation, a tenth of a new connection. Here all operations share one timer, and most end
long before it is due.
"""

import asyncio
from collections.abc import Awaitable
from math import inf
from typing import TypeVar, cast

_Result = TypeVar("_Result")


class Deadlines:
    """The operations under way, and when they must end. Times are those of the event loop, in seconds."""

    def __init__(self) -> None:
        self._ends: dict[asyncio.Task[object], float] = {}  # inf for a cancelled one
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf  # when the timer goes off

    async def keep(self, operation: Awaitable[_Result], seconds: float) -> _Result:
        """Await an operation. After `seconds`, cancel it and raise TimeoutError. A task has one operation at a time."""
        task = cast("asyncio.Task[object]", asyncio.current_task())
        cancelled_before = task.cancelling()
        self._ends[task] = end = asyncio.get_running_loop().time() + seconds
        self._wake_at(end)
        try:
            return await operation
        except asyncio.CancelledError:
            if self._ends[task] == inf and task.cancelling() == cancelled_before + 1:
                raise TimeoutError from None
            raise
        finally:
            if self._ends.pop(task) == inf:
                task.uncancel()

    def _wake_at(self, end: float) -> None:
        if end < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._due = asyncio.get_running_loop().call_at(end, self._cancel_late), end

    def _cancel_late(self) -> None:
        self._timer, self._due = None, inf
        now = asyncio.get_running_loop().time()
        for task, end in self._ends.items():
            if end <= now:
                self._ends[task] = inf
                task.cancel()
        self._wake_at(min(self._ends.values(), default=inf))
