"""The ledger's files. An unfinished file has another name until it is finished.

A file has one gzip member for each flush, so it is readable up to the last flush at any time. After `kill -9` the next start
cuts the file there and finishes it. Running gateways do so with abandoned files of any name. All calls block, and run in a
thread of their own.
"""

import gzip
import logging
import os
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gateway.features.ledger.unsent_lines import UNSENT
from gateway.files.flock import lock
from gateway.files.path_faults import write_remedy
from gateway.ledger_paths import file_name, in_progress_name

MAX_FILE_BYTES = 32 * 1024 * 1024
"""A larger file is finished at the next flush, because Spark reads a gzip file in one task."""

STRANGER_SECONDS = 900.0
"""After this time and `rotate_seconds` without a write, an unfinished file counts as abandoned: its writer would have finished
it. The time is for file systems without locks."""

AGREED_SECONDS = 3_600.0
"""Old files are deleted by the earliest wall time of this period. A clock that was set wrong, by hand or at a boot, is usually
corrected within this time."""

_CHUNK = 1 << 20
_SUFFIX = ".jsonl.gz"

_log = logging.getLogger("weir.ledger")


class AgreedTime:
    """Compares the wall clock with the monotonic clock, so that a wrong wall clock deletes no files. Times are in seconds."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, float]] = deque()  # monotonic time, and wall time minus monotonic time

    def look(self, monotonic: float, wall: float) -> float | None:
        """The present wall time by the slowest look of the last `AGREED_SECONDS`; None until the looks go back so far."""
        looks = self._looks
        looks.append((monotonic, wall - monotonic))
        while len(looks) > 1 and monotonic - looks[1][0] >= AGREED_SECONDS:
            looks.popleft()
        if monotonic - looks[0][0] < AGREED_SECONDS:
            return None
        return monotonic + min(ahead for _, ahead in looks)


@dataclass(slots=True)
class _Part:
    """An unfinished file, begun at a monotonic time. `good` is the end of its last whole member, in bytes."""

    descriptor: int
    path: Path
    finished: Path
    begun: float
    good: int = 0
    lines: int = 0

    @property
    def deleted(self) -> bool:
        """True if somebody has deleted the file, such as to make room, or if its file system has lost it (ESTALE)."""
        try:
            return os.fstat(self.descriptor).st_nlink == 0
        except OSError:
            return True


class LedgerFiles:
    """Writes lines to one open file per folder. `wall` is in seconds since 1970, `now` in monotonic seconds."""

    def __init__(self, path: Path, gateway: str, *, rotate_seconds: float, retention_seconds: float, max_bytes: int) -> None:
        self._path = path
        self._gateway = gateway
        self.rotate_seconds = rotate_seconds
        self.retention_seconds = retention_seconds
        self.max_bytes = max_bytes
        self.max_file_bytes = MAX_FILE_BYTES
        self._parts: dict[str, _Part] = {}
        self._sequence = 0
        self._warned = False  # that the file system has no locks
        self._left: set[Path] = set()  # unfinished files that can't be finished: each is logged once

    def write(self, lines: Mapping[str, Sequence[str]], wall: float, now: float) -> int:
        """Append `lines` by folder, and finish files that are old or large enough. Returns the number of lost lines."""
        lost = 0
        for folder, some in lines.items():
            part = self._parts.get(folder)
            if part is not None and part.deleted:
                lost += self._finish(folder)
            try:
                self._append(folder, some, wall, now)
            except OSError as error:
                lost += len(some)
                _log.error(
                    "ledger.path: %d events are lost: %s — %s",
                    len(some), error.strerror, write_remedy(error, self._path / folder),
                )  # fmt: skip
        for folder, part in list(self._parts.items()):
            if now - part.begun >= self.rotate_seconds or part.good >= self.max_file_bytes:
                lost += self._finish(folder)
        return lost

    def close(self) -> None:
        for folder in list(self._parts):
            self._finish(folder)

    def recover(self, wall: float) -> int:
        """At the start: finish unfinished files of this gateway's name, and abandoned ones. Returns the number of files."""
        return self._finish_others(_before_time(in_progress_name(file_name(self._gateway, 0, 0))), wall)

    def finish_abandoned(self, wall: float) -> int:
        """Finish the abandoned files of all gateways, and files that this one could not finish. Returns the number of files."""
        return self._finish_others(None, wall)

    def retain(self, wall: float | None) -> int:
        """Delete files that are too old, then the oldest files while the rest is too large. Returns the number of files.

        `wall` is None while the time is not certain. Then no file is deleted for its age. Raises OSError in the end, if a file
        can't be deleted.
        """
        files = sorted(self._finished_files())
        total = sum(size for _, size, _ in files)
        deleted = 0
        failed: OSError | None = None
        for path, size, modified in files:
            if total <= self.max_bytes and (wall is None or wall - modified <= self.retention_seconds):
                continue
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                failed = failed or error
            else:
                deleted += 1
            total -= size  # also of a file that stays: otherwise all others would go in its place
        for path in self._path.glob(UNSENT):  # such as those for an earlier `ledger.topic`
            with suppress(FileNotFoundError):  # sent meanwhile
                if wall is not None and wall - path.stat().st_mtime > self.retention_seconds:
                    path.unlink()
                    deleted += 1
        for folder in (*self._path.glob("date=*/hour=*"), *self._path.glob("date=*")):
            with suppress(FileNotFoundError):  # another worker's retention was faster
                if not any(folder.iterdir()):
                    folder.rmdir()
        if failed is not None:
            raise failed
        return deleted

    def _append(self, folder: str, lines: Sequence[str], wall: float, now: float) -> None:
        part = self._parts.get(folder) or self._open(folder, wall, now)
        data = "".join(f"{line}\n" for line in lines).encode()
        member = gzip.compress(data, compresslevel=6, mtime=0)
        try:
            written = 0
            while written < len(member):  # a disk that fills up takes only a part
                written += os.pwrite(part.descriptor, member[written:], part.good + written)
        except OSError:
            os.ftruncate(part.descriptor, part.good)
            raise
        part.good += len(member)
        part.lines += len(lines)

    def _open(self, folder: str, wall: float, now: float) -> _Part:
        directory = self._path / folder
        while True:
            directory.mkdir(parents=True, exist_ok=True)
            finished = directory / file_name(self._gateway, int(wall * 1000), self._sequence)
            self._sequence += 1
            path = directory / in_progress_name(finished.name)
            if finished.exists():
                continue
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
            except (FileExistsError, FileNotFoundError):  # the latter: another worker has just deleted the empty folder
                continue
            if not lock(descriptor, self._warn_of_no_locks):
                os.close(descriptor)
                continue  # another gateway of this name has just started, and deletes the empty file
            part = self._parts[folder] = _Part(descriptor, path, finished, now)
            return part

    def _warn_of_no_locks(self, error: OSError) -> None:
        if not self._warned:
            _log.warning(
                "ledger.path: files in %s can't be locked: %s — give each gateway a ledger.gateway of its own",
                self._path, error.strerror,
            )  # fmt: skip
        self._warned = True

    def _finish(self, folder: str) -> int:
        """Returns the number of lost lines."""
        part = self._parts.pop(folder)
        try:
            if part.deleted:
                _log.error(
                    "%d events are lost: %s was gone before it was finished — delete only files named weir-*, or lower"
                    " ledger.max_bytes",
                    part.lines, part.path,
                )  # fmt: skip
                return part.lines
            _publish(part.descriptor, part.path, part.finished, part.good)
        except OSError as error:
            _log.error("%s can't be finished: %s; Weir tries again later", part.path, error.strerror)
        finally:
            os.close(part.descriptor)
        return 0

    def _finish_others(self, own: str | None, wall: float) -> int:
        """Finish the files of the gateway `own`, and abandoned ones, but not those that this gateway is writing."""
        found = 0
        failed: dict[Path, OSError] = {}
        writing = {part.path for part in self._parts.values()}  # as without locks nothing else shows it
        for path in self._path.glob("date=*/hour=*/_weir-*.part"):
            try:
                mine = _before_time(path.name) == own
                if path not in writing and (mine or wall - path.stat().st_mtime > STRANGER_SECONDS + self.rotate_seconds):
                    found += self._finish_abandoned(path)
            except FileNotFoundError:  # another gateway was faster
                continue
            except OSError as error:
                failed[path] = error
        for path in failed.keys() - self._left:
            _log.warning("the unfinished file %s can't be finished: %s", path, failed[path].strerror)
        self._left = set(failed)
        return found

    def _finish_abandoned(self, path: Path) -> bool:
        """Cut an unfinished file after its last whole member, and finish it. Returns False if a gateway is writing the file."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if not lock(descriptor, self._warn_of_no_locks):
                return False
            finished = path.with_name(path.name.removeprefix("_").removesuffix(".part"))
            _publish(descriptor, path, finished, whole_members(descriptor))
        finally:
            os.close(descriptor)
        return True

    def _finished_files(self) -> Iterator[tuple[Path, int, float]]:
        for path in self._path.glob(f"date=*/hour=*/weir-*{_SUFFIX}"):
            try:
                status = path.stat()
            except FileNotFoundError:  # another gateway's retention was faster
                continue
            yield path, status.st_size, status.st_mtime


def _before_time(name: str) -> str:
    """The beginning of an unfinished file's name, up to the gateway: a gateway `a` does not own the files of `a-b`."""
    return name.rsplit("-", 2)[0]


def _publish(descriptor: int, path: Path, finished: Path, size: int) -> None:
    if size == 0:
        path.unlink()
        return
    os.ftruncate(descriptor, size)
    os.fsync(descriptor)
    path.rename(finished)


def whole_members(descriptor: int) -> int:
    """The end of the last whole gzip member of a file, in bytes."""
    good = position = 0
    decoder = zlib.decompressobj(wbits=31)
    pending = b""
    while chunk := pending or os.pread(descriptor, _CHUNK, position):
        if not pending:
            position += len(chunk)
        try:
            decoder.decompress(chunk)
        except zlib.error:
            break
        pending = decoder.unused_data
        if decoder.eof:
            good = position - len(pending)
            decoder = zlib.decompressobj(wbits=31)
    return good
