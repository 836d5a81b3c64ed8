"""The lines that `weir report` prints."""

import sys
import time
from pathlib import Path

from gateway.files.path_faults import write_remedy
from gateway.terminal_text import printable


def unreadable_folder(error: OSError) -> str:
    return f"{error.filename}: can't be read ({error.strerror}); give this user the right to read all of --events and --out"


def unwritable_file(error: OSError) -> str:
    return f"{error.filename}: can't be written ({error.strerror}); {write_remedy(error, Path(error.filename))}"


class Messages:
    """Prints progress and errors to stderr, and results to stdout."""

    def __init__(self, *, quiet: bool) -> None:
        """Print no progress if `quiet`."""
        self._is_quiet = quiet
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds since the run began."""
        return time.monotonic() - self._began

    def restart(self) -> None:
        """Begin a new run."""
        self._began = time.monotonic()

    def progress(self, text: str) -> None:
        """Print a line with the seconds since the run began."""
        if not self._is_quiet:
            print(f"{self.seconds:6.1f} s  {text}", file=sys.stderr, flush=True)

    def error(self, text: str) -> None:
        print(printable(f"weir report: {text}"), file=sys.stderr, flush=True)  # brokers' texts may be in it

    def result(self, text: str) -> None:
        print(text, flush=True)
