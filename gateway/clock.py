"""The only importer of `time`: all other modules take the time as an argument or from here."""

import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

monotonic = time.monotonic
"""Seconds on a clock that never jumps, from an arbitrary zero. All quota arithmetic uses this clock."""

wall = time.time
"""Seconds since the epoch, only for logs, events, certificates, and data that another boot of the machine has saved."""

busy = time.thread_time
"""Seconds of CPU time that this thread has taken, without those in which the machine ran other work."""


def utc() -> datetime:
    """The wall clock, only to find the rows of the config that count at a time. No request waits for it."""
    return datetime.fromtimestamp(wall(), UTC)


def iso(seconds: float) -> str:
    """Wall clock seconds as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@cache
def boot_id() -> str:
    """The id of this boot of the machine, or "". Within a boot, `monotonic` continues from process to process."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
