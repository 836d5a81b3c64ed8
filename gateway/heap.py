"""Keeps the memory of the process flat, with functions of glibc. Other C libraries lack them.

uvloop allocates 256 KiB for each TLS connection, and uses the first pages. glibc places such a buffer in the heap. Later
allocations touch the rest of its place, so that memory would grow for hours. docs/decisions/036 has the figures.
"""

import asyncio
import ctypes
from contextlib import suppress
from typing import Final

from gateway import clock

GIVE_BACK_SECONDS = 5.0
"""The least seconds between two calls of malloc_trim(3). One takes 0.3 to 0.8 ms for a heap of 70 MiB."""

MOST_OF_TIME: Final = 0.0005
"""The part of the time that these calls may take: clients wait meanwhile, and p99.9 of the latency must not show it."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_PARAMETERS: Final = {
    _M_MMAP_THRESHOLD: 256 * 1024,  # unless the heap has room, a buffer gets a mapping of its own, which ends with it
    _M_TRIM_THRESHOLD: 4 * 1024 * 1024,  # glibc's default would move the heap's end at each large read
    _M_ARENA_MAX: 1,  # threads take turns, and a heap for each thread would grow to the most that any work needs
}
"""Parameters of mallopt(3)."""


def tune() -> None:
    """Called once, before the threads start."""
    with suppress(OSError, AttributeError):
        adjust = ctypes.CDLL(None).mallopt
        for parameter, value in _PARAMETERS.items():
            adjust(parameter, value)


async def give_back() -> None:
    """Give the heap's free pages back to the kernel again and again, until cancelled."""
    with suppress(OSError, AttributeError):
        trim = ctypes.CDLL(None).malloc_trim
        pause = GIVE_BACK_SECONDS
        while True:
            await asyncio.sleep(pause)
            begin = clock.busy()
            trim(0)
            pause = max(GIVE_BACK_SECONDS, (clock.busy() - begin) / MOST_OF_TIME)
