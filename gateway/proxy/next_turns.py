"""Long requests of connections, one part after another, so that the event loop serves all other connections in between."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from gateway import clock

MAX_TURN_COST: Final = 16 * 1024
"""The work for one connection before the event loop serves the others, in bytes that handlers parse."""

MAX_READ_COST: Final = 2 * 1024
"""The part of a Produce whose topics are read when it arrives. The rest waits for the connection's next turn."""


def equal_time(since: float) -> float:
    """The thread's CPU time (s) at which as much has passed from now on as between `since` and now."""
    now = clock.busy()
    return now + now - since


class NextTurns:
    """The connections whose next bytes wait because they take long (`MAX_TURN_COST`). Each has its turn, in order.

    One of them has its turn in each turn of the event loop, and more if the rest of the loop took longer than that. So they get
    half of the CPU time in all, and their number does not delay the others.
    """

    __slots__ = ("_ended_at", "_serving", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._serving = False
        self._ended_at = 0.0  # the thread's CPU time (s) at the end of the last turn

    def add(self, call: Callable[[], None]) -> None:
        """Call it once all that wait have been called. It must not raise."""
        self._waiting.append(call)
        if not self._serving:
            self._serving = True
            self._ended_at = clock.busy()
            self._schedule()

    def _schedule(self) -> None:
        asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        end = equal_time(self._ended_at)
        waiting = self._waiting
        waiting.popleft()()
        while waiting and clock.busy() < end:
            waiting.popleft()()
        self._ended_at = clock.busy()
        self._serving = bool(waiting)
        if waiting:
            self._schedule()
