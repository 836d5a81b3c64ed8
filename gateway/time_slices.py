"""Runs long work of the admin port and the ledger within the event loop, in slices of `SLICE_SECONDS`.

A thread would be worse: while it works, each callback of uvloop waits for the interpreter's lock, up to the switch interval.
A busy gateway then falls behind (docs/decisions/034-latency.md).
"""

import asyncio
from typing import Final, TypeVar

from gateway import clock
from gateway.steps import Steps

SLICE_SECONDS: Final = 0.0001
"""The longest time that a client waits for a slice, apart from the length of a step."""

T = TypeVar("T")


async def in_slices(steps: Steps[T]) -> T:
    """Take all steps. The event loop serves its clients before each slice."""
    while True:
        await asyncio.sleep(0)
        end = clock.monotonic() + SLICE_SECONDS
        try:
            next(steps)
            while clock.monotonic() < end:
                next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
