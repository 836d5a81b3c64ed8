"""The lines that `weir report` prints."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gateway.files.flock import LockHeldError, only_holder
from gateway.files.path_faults import read_remedy, write_remedy
from gateway.terminal_text import printable

_LOCK = "_lock"


def unreadable_folder(error: OSError) -> str:
    remedy = read_remedy(error, "give this user the right to read all of --events and --out")
    return f"{error.filename}: can't be read ({error.strerror}); {remedy}"


def unwritable_file(error: OSError) -> str:
    return f"{error.filename}: can't be written ({error.strerror}); {write_remedy(error, Path(error.filename))}"


class InUseError(Exception):
    """Another process writes to a folder. The message names the folder and a remedy."""


class UnwritableFileError(OSError):
    """A file of this machine can't be written, for example because the disk is full."""


@contextmanager
def only_run(option: str, path: Path) -> Iterator[None]:
    """Keep other runs out of the folder that `option` names. Makes the folder.

    Raises `InUseError` and `UnwritableFileError`.
    """
    with ExitStack() as held:
        try:
            path.mkdir(parents=True, exist_ok=True)
            held.enter_context(only_holder(path / _LOCK))
        except LockHeldError:
            raise InUseError(
                f"{option} {path}: another weir report is writing here, and each would overwrite the other's files;"
                f" wait for its end, or give {option} another folder"
            ) from None
        except OSError as error:
            raise UnwritableFileError(error.errno, error.strerror, str(path / _LOCK)) from error
        yield


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
