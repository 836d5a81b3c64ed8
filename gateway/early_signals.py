"""Signals at the start of a process. An exception in the middle of an import shows a traceback, or gets lost."""

import os
import signal
from typing import Final

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C."""

_STDERR: Final = 2
_FIRST: Final = 1
"""The id of a container's first process. The kernel drops each signal for which that process has no handler."""

_WORDS: Final = {signal.SIGINT: b"interrupted\n", signal.SIGTERM: b"terminated\n"}


def end_at_once() -> None:
    """From now on, Ctrl-C ends the process with one line, and SIGTERM does in a container's first process.

    For a process that has printed and changed nothing yet. Elsewhere, the default action of SIGTERM ends the process.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore Ctrl-C
        signal.signal(signal.SIGINT, _end)
    if os.getpid() == _FIRST:
        signal.signal(signal.SIGTERM, _end)


def raise_again() -> None:
    """Undo `end_at_once` for Ctrl-C, which then raises KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, _: object) -> None:
    try:
        os.write(_STDERR, _WORDS[signal.Signals(number)])
    finally:
        os._exit(128 + number)
