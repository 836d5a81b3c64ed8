"""Writes log lines in a thread: a reader of stderr that stands still must not stop the event loop."""

import fcntl
import logging
import os
import select
import threading
from collections import deque
from contextlib import suppress
from typing import Final

MAX_LINES: Final = 5_000
"""The limit on lines that wait for the reader. Further lines are lost, and counted."""

FLUSH_SECONDS: Final = 1.0
"""The longest time that the end of the process waits for the reader."""

_log = logging.getLogger("weir.log")


class LogWriter(logging.Handler):
    """Formats records at once, and writes the lines to a file descriptor in a thread.

    The thread writes no Python stream: at its end, Python would wait for the stream's lock.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: deque[str] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._writing = False
        self._lost = 0  # lines since the queue is full
        self._unwritten = 0  # lines since stderr takes no more
        self._torn = False  # a part of a line is written
        threading.Thread(target=self._write_all, name="write the log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        with self._changed:
            if len(self._lines) >= MAX_LINES:
                self._lost += 1
                return
            if self._lost:
                self._lines.append(self._loss(self._lost, "nobody read stderr"))
                self._lost = 0
            self._lines.append(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all lines are written, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._writing, FLUSH_SECONDS)

    def close(self) -> None:
        self.flush()
        super().close()

    def _loss(self, lines: int, cause: str) -> str:
        message = "%d log lines are lost, because %s: look at the program or the disk that takes Weir's log"
        return self.format(_log.makeRecord(_log.name, logging.WARNING, __file__, 0, message, (lines, cause), None))

    def _write_all(self) -> None:
        cause = ""
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                lines = [self._lines.popleft()]
                self._writing = True
            if self._unwritten:
                lines.insert(0, self._loss(self._unwritten, f"stderr took no more ({cause})"))
            try:
                self._write("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))
                self._unwritten = 0
            except OSError as error:  # the reader has gone, or the disk is full
                self._unwritten += 1
                cause = str(error.strerror)

    def _write(self, data: bytes) -> None:
        """Write whole lines. Raises OSError; the next line then begins below the part that was written."""
        # Workers share a pipe, and its kernel tears writes of more than 4 KiB. The lock ends with its process.
        with suppress(OSError):  # some file systems have no locks
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            left = b"\n" + data if self._torn else data
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:  # somebody else has made the pipe non-blocking
                    select.select((), (self._descriptor,), ())
                    continue
                self._torn = len(left) > 0
        finally:
            with suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
