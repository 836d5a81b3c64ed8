"""stdin, stdout and stderr of a process that runs `weir`."""

import io
import os
import sys


class StdoutError(Exception):
    """stdout takes no more. The message has the cause and the remedy."""


class Stdout(io.TextIOWrapper):
    """Raises StdoutError for any failure but a BrokenPipeError: an OSError does not say which file it is about.

    Characters that the encoding does not have become escapes, as on stderr: `\\u2014`. So does a byte that is no UTF-8.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(
            stream.buffer,
            encoding=stream.encoding,
            errors="backslashreplace",
            newline="\n",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _refused(error) from None

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _refused(error) from None


def fill() -> None:
    """Open /dev/null in place of each standard stream that is closed.

    The event loop's own files would take these numbers: it aborts when it closes them, and the log would go into one of them.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


def prepare() -> None:
    """Make the standard streams of this process fit for any message. Call it once, before anything is printed."""
    fill()
    if isinstance(sys.stdout, io.TextIOWrapper):  # None: it was closed
        sys.stdout = Stdout(sys.stdout)


def discard_stdout() -> None:
    """Discard the rest of stdout's buffer, which Python would write at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refused(error: OSError) -> StdoutError:
    return StdoutError(f"stdout can't be written: {error.strerror} — free space there, or send the output elsewhere")
