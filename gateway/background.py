"""Background tasks. A task that fails is logged, counted and started again, and no other task ends with it."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from gateway import clock

FIRST_SECONDS = 0.5
MOST_SECONDS = 30.0
LONG_LIFE_SECONDS = 10.0

_log = logging.getLogger("weir.background")

CANCEL_AGAIN_SECONDS = 5.0
"""A task that has not ended so long after its cancellation is cancelled again, so that it cannot keep the process alive."""

Run = Callable[[], Coroutine[Any, Any, None]]


class Backoff:
    """The pause before a task or a worker that has ended is started again: it doubles with each early end."""

    def __init__(self) -> None:
        self._next = FIRST_SECONDS

    def seconds(self, lived: float) -> float:
        """Return 0.0 after a long life. `lived` is in seconds; a worker's life begins with its first answer."""
        if lived >= LONG_LIFE_SECONDS:
            self._next = FIRST_SECONDS
            return 0.0
        wait, self._next = self._next, min(self._next * 2.0, MOST_SECONDS)
        return wait


class BackgroundTask:
    """One task, over all of its restarts. `BackgroundTasks.start` makes it."""

    def __init__(self, name: str, run: Run, end: Callable[[], None], restarts: "Counter[str]") -> None:
        self.name = name
        self._run = run
        self._end = end
        self._restarts = restarts
        self._ending = False
        restarts[name] += 0
        self.task = asyncio.get_running_loop().create_task(self._keep_running(), name=name)

    def cancel(self) -> None:
        """End the task for good: `end` is called before this returns, then the task is cancelled."""
        if self._ending:
            return
        self._ending = True
        try:
            self._end()
        except Exception:
            _log.exception("background task failed while it ended: %s", self.name)
        self.task.cancel()

    async def _keep_running(self) -> None:
        backoff = Backoff()
        while True:
            began = clock.monotonic()
            try:
                await self._run()
            except Exception:
                if self._ending:
                    _log.exception("background task failed while it ended: %s", self.name)
                    return
                wait = backoff.seconds(clock.monotonic() - began)
                self._restarts[self.name] += 1
                _log.exception("background task failed, it is started again in %g s: %s", wait, self.name)
            else:
                return
            await asyncio.sleep(wait)


class BackgroundTasks:
    """An async context manager: on exit it cancels the remaining tasks and waits for all of them.

    `restarts` counts by name; each name is there with 0 from the start of its task. A name must come from Weir's own code,
    because it is a label of `weir_task_restarts_total`.
    """

    def __init__(self, restarts: "Counter[str]") -> None:
        self._restarts = restarts
        self._left: dict[asyncio.Task[None], BackgroundTask] = {}

    def start(self, name: str, run: Run, end: Callable[[], None] = lambda: None) -> BackgroundTask:
        """Run `run()` until it returns or the task is cancelled. After a failure `run` is called again.

        `end` is called once, when the task is cancelled, also while the task waits for its next start.
        """
        started = BackgroundTask(name, run, end, self._restarts)
        self._left[started.task] = started
        started.task.add_done_callback(self._left.pop)
        return started

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for each in list(self._left.values()):
            each.cancel()
        while self._left:
            await asyncio.wait(list(self._left), timeout=CANCEL_AGAIN_SECONDS)
            for task, each in list(self._left.items()):  # a library below it may have suppressed the CancelledError
                _log.warning("background task does not end, it is cancelled again: %s", each.name)
                task.cancel()
