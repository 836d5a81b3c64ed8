"""Writes log lines in a thread: a reader of stderr that stands still must not stop the event loop."""

import fcntl
import logging
import os
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
        self._lost = 0
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
                self._lines.append(self.format(self._loss()))
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

    def _loss(self) -> logging.LogRecord:
        message = "%d log lines are lost, because nobody read stderr: look at the program that takes Weir's log"
        return _log.makeRecord(_log.name, logging.WARNING, __file__, 0, message, (self._lost,), None)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                data = f"{self._lines.popleft()}\n".encode(errors="backslashreplace")
                self._writing = True
            with suppress(OSError):  # the reader has gone
                self._write(data)

    def _write(self, data: bytes) -> None:
        # Workers share a pipe, and its kernel tears writes of more than 4 KiB. The lock ends with its process.
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
