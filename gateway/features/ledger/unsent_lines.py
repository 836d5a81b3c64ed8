"""Lines for `ledger.topic` without a confirmation. At its end, a gateway saves them below `ledger.path` for the next start.

A file has the lines of one process in their order. The lines keep their `LINE_HEADER`, so readers recognise a line that the
topic has already.
"""

import json
import os
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Self

from gateway.cluster.record_batches import Record
from gateway.events import LINE_HEADER
from gateway.files.flock import lock
from gateway.files.whole_file import replace_file

UNSENT = "_unsent-*"
"""The names of these files, unfinished ones included. Spark ignores names that begin with an underscore."""

_SUFFIX = ".jsonl"


class DamagedUnsentFileError(Exception):
    """The first line of the file is not a head."""


class Backlog:
    """Lines of one process that wait for confirmation, in their order. `number` is the number of the first waiting line."""

    def __init__(self, gateway: str, source: str, number: int = 1) -> None:
        self.gateway = gateway
        self.source = source
        self.number = number
        self.lines: deque[bytes] = deque()
        self.size = 0

    def add(self, line: bytes) -> None:
        self.lines.append(line)
        self.size += len(line)

    def batch(self, max_bytes: int) -> list[Record]:
        """The first lines, with at most `max_bytes` together; at least one line, unless no line waits.

        All records have the key `gateway`, so that the lines of a gateway stay in order.
        """
        records: list[Record] = []
        size = 0
        for number, line in enumerate(self.lines, self.number):
            size += len(line)
            if records and size > max_bytes:
                break
            records.append((self.gateway.encode(), line, (LINE_HEADER, f"{self.source}-{number}".encode())))
        return records

    def remove(self, count: int) -> None:
        """Remove the first lines."""
        for _ in range(count):
            self.size -= len(self.lines.popleft())
        self.number += count


@dataclass(frozen=True, slots=True)
class _Head:
    """The first line of a file, as JSON. `number` is the number of the first ledger line."""

    topic: str
    gateway: str
    source: str
    number: int
    lines: int


def save_unsent(folder: Path, topic: str, backlog: Backlog) -> Path:
    """Save the lines durably; return the file. Raises OSError; then no file stays, except for UnsyncedError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (UNSENT.replace("*", backlog.source) + _SUFFIX)
    head = _Head(topic, backlog.gateway, backlog.source, backlog.number, len(backlog.lines))
    lines = chain([json.dumps(asdict(head)).encode()], backlog.lines)
    replace_file(path, (f"{line.decode()}\n" for line in lines), durable=True)
    return path


def unsent_files(folder: Path) -> list[Path]:
    """The finished files. Each has another source, so their order does not matter."""
    return sorted(folder.glob(UNSENT + _SUFFIX))


class UnsentFile:
    """A file that this process alone reads, from its beginning. `backlog` has the lines that were read last."""

    def __init__(self, file: BinaryIO, path: Path, head: _Head) -> None:
        self._file = file
        self.path = path
        self.lines = head.lines
        self.backlog = Backlog(head.gateway, head.source, head.number)

    @classmethod
    def open(cls, path: Path, topic: str) -> Self | None:
        """None if the file is for another topic, or if another gateway sends it. Raises OSError, DamagedUnsentFileError."""
        file = path.open("rb+")
        head = None
        try:
            if _lock(file):
                head = _head(file.readline())
        finally:
            if head is None or head.topic != topic:
                file.close()
        return None if head is None or head.topic != topic else cls(file, path, head)

    def read(self, max_bytes: int) -> bool:
        """Add lines of about `max_bytes` to `backlog`. Returns False at the end of the file. Raises OSError."""
        lines = self._file.readlines(max_bytes)
        for line in lines:
            self.backlog.add(line.removesuffix(b"\n"))
        return bool(lines)

    def delete(self) -> None:
        """Raises OSError."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        self._file.close()


def _lock(file: BinaryIO) -> bool:
    """False if another process sends the file, or has just sent and deleted the file.

    On a file system without locks, two gateways may send a file, and readers drop the second copies.
    """
    return lock(file.fileno()) and os.fstat(file.fileno()).st_nlink > 0


def _head(line: bytes) -> _Head:
    with suppress(ValueError, TypeError, RecursionError):
        head = _Head(**json.loads(line))
        if [type(value) for value in asdict(head).values()] == [str, str, str, int, int]:
            return head
    raise DamagedUnsentFileError(f"{line[:80]!r} is not its head")
