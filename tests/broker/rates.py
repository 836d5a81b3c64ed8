"""Waits for settled rates: a busy machine disturbs short measurements, so they are repeated."""

import time
from collections import deque
from collections.abc import Callable

from tests.weir_process import wait_until

TOLERANCE = 0.08
"""A fraction of the rate. Gateways that share nothing miss it by far; `loadtest.scenarios.sharing` measures exact figures."""
LOOK_SECONDS = 6.0
"""So long that a stall of some tenths of a second stays within the tolerance."""
TIMEOUT = 180.0


def wait_for_rate(written: Callable[[], int], expected: float) -> None:
    """Wait until two measurements in a row show the `expected` rate in bytes per second, not just one."""
    samples = deque([(time.monotonic(), written())])

    def rate(begin: tuple[float, int], end: tuple[float, int]) -> float:
        return (end[1] - begin[1]) / (end[0] - begin[0])

    def settled() -> bool:
        now = (time.monotonic(), written())
        samples.append(now)
        while samples[1][0] <= now[0] - 2 * LOOK_SECONDS:
            samples.popleft()
        if now[0] - samples[0][0] < 2 * LOOK_SECONDS:
            return False
        middle = next(sample for sample in samples if sample[0] >= now[0] - LOOK_SECONDS)
        if middle is now:  # the machine was too busy to measure
            return False
        return all(abs(rate(*look) / expected - 1.0) <= TOLERANCE for look in ((samples[0], middle), (middle, now)))

    wait_until(settled, f"{expected:g} bytes a second", TIMEOUT)
