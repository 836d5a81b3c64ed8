"""Waits for settled rates: a busy machine disturbs short measurements, so they are repeated."""

import time
from collections import deque
from collections.abc import Callable

from tests.weir_process import wait_until

TOO_MUCH, TOO_LITTLE = 0.08, 0.25
"""Fractions of the rate. A busy machine may lose some of it, but never adds any. Gateways that share nothing miss both by far;
`loadtest.scenarios.sharing` measures exact figures."""
LOOK_SECONDS = 3.0
TIMEOUT = 90.0


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
        return all(-TOO_LITTLE <= rate(*look) / expected - 1.0 <= TOO_MUCH for look in ((samples[0], middle), (middle, now)))

    wait_until(settled, f"{expected:g} bytes a second", TIMEOUT)
