"""Runs long work of the admin port and the ledger within the event loop, in slices.

A thread would be worse: while it works, each callback of uvloop waits for the interpreter's lock, up to the switch interval.
A busy gateway then falls behind (docs/decisions/034-latency.md).
"""

import asyncio
from typing import Final, TypeVar

from gateway import clock
from gateway.steps import Steps

SLICE_SECONDS: Final = 0.0001
"""The length of a slice while the event loop has little to do. A slice ends with a step, so it may be longer by that."""

LONGEST_SLICE_SECONDS: Final = 0.001

SHARE: Final = 0.25
"""A slice may take that part of the time since the slice before. So a busy event loop does not keep a scrape for long.

Works that run together share the time of one slice. Otherwise each would take the slices of the others for load.
"""

T = TypeVar("T")

_running: Final[set[object]] = set()
"""An object for each work in progress."""


async def in_slices(steps: Steps[T]) -> T:
    """Take all steps. The event loop serves its clients before each slice."""
    work = object()
    _running.add(work)
    try:
        paused = clock.monotonic()
        while True:
            await asyncio.sleep(0)
            now = clock.monotonic()
            end = now + min(max(SLICE_SECONDS, (now - paused) * SHARE), LONGEST_SLICE_SECONDS) / len(_running)
            try:
                next(steps)
                while (now := clock.monotonic()) < end:
                    next(steps)
            except StopIteration as done:
                result: T = done.value
                return result
            paused = now
    finally:
        _running.discard(work)
