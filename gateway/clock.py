"""The only importer of `time`: everything else is told what the time is."""

import time
from functools import cache
from pathlib import Path

monotonic = time.monotonic
"""Seconds on a clock that never jumps; its zero means nothing. All quota arithmetic uses this one."""

wall = time.time
"""Seconds since the epoch, for logs, events and what another boot of the machine has saved; nothing else is decided by it."""


@cache
def boot_id() -> str:
    """The name of this boot of the machine, for which `monotonic` goes on from process to process; "" where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
