"""Locks (flock) between processes. The kernel frees a lock when its process ends."""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gateway.files.whole_file import real_path

_HELD: Final = frozenset({errno.EWOULDBLOCK, errno.EACCES})


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


def _open(path: Path) -> int:
    try:  # NFS locks only files that are open for writing
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:  # another user has made it
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
