"""Cuts off a process that a hung disk keeps alive after its signal to end.

Python's end waits for its threads, and a thread in a call of the kernel cannot be stopped. The kernel frees locks and ports.
"""

import logging
import os
import threading
from collections.abc import Callable
from typing import Final

OVERDUE: Final = 1
"""The exit code of such a process. Its last state may be missing on the disk."""

_log = logging.getLogger("weir.overdue")


EndWithin = Callable[[float], None]
"""Sets the deadline of `Deadline.end_within`."""


def no_deadline(seconds: float) -> None:
    """For a gateway that shares its process."""


class Deadline:
    """A deadline for the end of this process, in a thread: the event loop may be blocked as well."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def end_within(self, seconds: float) -> None:
        """Give the process so many seconds from now on, in place of an earlier deadline."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, _end, (seconds,))
        self._timer.daemon = True
        self._timer.start()


def _end(seconds: float) -> None:
    busy = sorted(thread.name for thread in threading.enumerate() if not thread.daemon)
    try:
        _log.error(
            "the process has not ended for %g s, and is cut off; its last state may be lost. Threads: %s — look for a hung disk"
            " at the config file, state.path, state.usage_path and ledger.path", seconds, ", ".join(busy),
        )  # fmt: skip
        for handler in logging.getLogger().handlers:
            handler.flush()
    finally:
        os._exit(OVERDUE)
