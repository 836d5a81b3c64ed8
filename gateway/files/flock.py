"""Locks (flock) between processes. The kernel frees a lock when its process ends."""

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from gateway.files.whole_file import real_path

HELD_MESSAGE: Final = "another gateway uses the file, and each would overwrite the other's saved changes"

_HELD: Final = frozenset({errno.EWOULDBLOCK, errno.EACCES})

_log = logging.getLogger("weir.state")


def lock_file(path: Path) -> Path:
    """The file that stands for the right to write `path`. It stays when its gateway ends, so it says that `path` has one."""
    file = real_path(path)
    return file.with_name(f"{file.name}.lock")


class LockHeldError(Exception):
    """Another process has the lock."""


def locked(path: Path, unlockable: Callable[[OSError], None] = lambda _: None) -> int | None:
    """Make and lock the file. Returns its descriptor, or None if another process has the lock. Closing the descriptor frees it.

    `unlockable` is called if the file system has no locks; the descriptor then locks nothing. Raises OSError if the file can't
    be made.
    """
    descriptor = _open(path)
    if not lock(descriptor, unlockable):
        os.close(descriptor)
        return None
    return descriptor


def lock(descriptor: int, unlockable: Callable[[OSError], None] = lambda _: None) -> bool:
    """Lock an open file. False if another process has the lock. If the file system has no locks, `unlockable` is called."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        unlockable(error)
    return True


@contextmanager
def only_holder(path: Path) -> Iterator[None]:
    """Keep other processes out of such a block. On a file system without locks, it keeps none out.

    Raises LockHeldError, and OSError if the file can't be made.
    """
    descriptor = locked(path)
    if descriptor is None:
        raise LockHeldError
    try:
        yield
    finally:
        os.close(descriptor)


class FileLock:
    """The right to write the file at `path`, as a lock (flock) on a file `NAME.lock` beside it.

    The file itself can't be locked, because each save replaces it. The kernel frees the lock when the process ends. `key` is
    the config key that names the file.
    """

    def __init__(self, key: str, path: Path) -> None:
        self.key = key
        self.path = path
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Take the lock, unless it is taken already. False if another process has it.

        Raises OSError if the lock's file can't be made. Then no gateway can save there either.
        """
        if self._descriptor is not None:
            return True
        self._descriptor = locked(lock_file(self.path), self._warn)
        return self._descriptor is not None

    def _warn(self, error: OSError) -> None:
        _log.warning("%s: %s can't be locked: %s — let only one gateway use it", self.key, self.path, error.strerror)

    def write(self, text: str) -> None:
        """Replace the text of the lock's file. It stays as it is if another user has made the file."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, text.encode(), 0)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def remedy(self) -> str:
        return f"stop the other gateway, or give each gateway a {self.key} of its own"


def _open(path: Path) -> int:
    try:  # NFS locks only files that are open for writing
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:  # another user has made it
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
