"""Times at which the scheduler took the processor from the load. Latencies of that time say nothing about the proxy."""

import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadtest.bench.estimate import Floats

Span = tuple[float, float]
"""The first and the last instant, in seconds."""

_SHORTEST: Final = 100e-6
_BEFORE: Final = 2e-3
_RECOVERY: Final = 5.0


class Absences:
    """Finds the absences of a thread that never sleeps: time passes on the clock, and not on the thread's own CPU clock.

    A long turn of the thread's own work, such as many responses at once after a stall of the proxy, is no absence.
    """

    __slots__ = ("_before", "_cpu", "_cpu_clock", "_wall", "spans")

    def __init__(self, cpu_clock: Callable[[], float] = time.thread_time) -> None:
        self.spans: list[Span] = []
        self._cpu_clock = cpu_clock
        self._before = self._wall = self._cpu = 0.0

    def begin(self, now: float) -> None:
        self._before = self._wall = now
        self._cpu = self._cpu_clock()

    def look(self, now: float) -> None:
        """Take the time of this turn. An absence lies between two turns."""
        before, self._before = self._before, now
        if now - before < _SHORTEST:
            return
        cpu = self._cpu_clock()
        away = now - self._wall - (cpu - self._cpu)
        self._wall, self._cpu = now, cpu
        if away >= _SHORTEST:
            self.spans.append((before, now))


def undisturbed(due: Floats, absences: Sequence[Span]) -> NDArray[np.bool_]:
    """False for each due time near an absence: from 2 ms before its beginning to five times its length after that.

    Only the due time decides, and never the latency. The requests of an absence come at once, and the proxy needs time to
    work them off.
    """
    kept = np.ones(len(due), dtype=np.bool_)
    for begin, end in absences:
        kept[np.searchsorted(due, begin - _BEFORE) : np.searchsorted(due, begin + _RECOVERY * (end - begin))] = False
    return kept
