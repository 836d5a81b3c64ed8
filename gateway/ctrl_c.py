"""Ctrl-C at the start of a process. An exception in the middle of an import shows a traceback, or gets lost."""

import os
import signal
from typing import Final

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C."""

_STDERR: Final = 2


def end_at_once() -> None:
    """From now on, Ctrl-C ends the process with one line. For a process that has printed and changed nothing yet."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore Ctrl-C
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Undo `end_at_once`: Ctrl-C raises KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    try:
        os.write(_STDERR, b"interrupted\n")
    finally:
        os._exit(INTERRUPTED)
