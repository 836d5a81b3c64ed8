"""Time and memory within a multiple of the input's size, counted in executed lines and allocated bytes instead of seconds."""

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

STEPS = 200_000
STEPS_PER_BYTE = 1_000
BYTES = 8 << 20
BYTES_PER_BYTE = 1_000


class OutOfBoundsError(AssertionError):
    """The code needs more than a multiple of the input's size."""


def check_bounded(check: Callable[[bytes], None], data: bytes, steps_per_byte: int = STEPS_PER_BYTE) -> None:
    """Run `check`. Raises OutOfBoundsError as soon as it has executed too many lines, or after it has allocated too much."""
    most = STEPS + steps_per_byte * len(data)
    steps = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > most:
            raise OutOfBoundsError(f"more than {most} steps for {len(data)} bytes")
        return count

    before = sys.gettrace()
    tracemalloc.start()
    try:
        sys.settrace(count)
        try:
            check(data)
        finally:
            sys.settrace(before)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > BYTES + BYTES_PER_BYTE * len(data):
        raise OutOfBoundsError(f"{peak} bytes of memory for {len(data)} bytes")
