"""Paths at which no file or no folder can be, remedies for errors of files, and reads that end."""

import errno
import io
import os
import select
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import BinaryIO, Final

from gateway import open_files

READABLE: Final = "make it readable for the user that runs Weir"
SILENCE_SECONDS: Final = 30
"""A read of a pipe or a device waits so long for the next bytes. Its writer may first ask for a password."""
MAX_STREAM_BYTES: Final = 32 << 20
"""The limit on the bytes of a pipe or a device. A device such as /dev/zero has no end."""
_CHUNK_BYTES: Final = 1 << 20

_BELOW_A_FILE = "give a path below a folder"
_UNUSABLE = {
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ELOOP: "remove the symbolic link that leads to itself, or give another path",
    errno.ENOTDIR: _BELOW_A_FILE,
}
_NO_ROOM = "free space for {}"
_NO_RIGHT = "let the user that runs Weir read and write {} and its folder"
_UNWRITABLE = {
    **{code: remedy + " instead of {}" for code, remedy in _UNUSABLE.items()},
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: "make the file system of {} writable",
    errno.EIO: "check the disk of {} and the kernel's log",
    errno.ENOENT: "make the folder of {}",
    errno.EISDIR: "remove the folder {}",
}


class UnendingFileError(OSError):
    """A pipe or a device with more than `MAX_STREAM_BYTES`, or without its next bytes for `SILENCE_SECONDS`."""


def open_now(path: str, flags: int) -> int:
    """An `opener` of `open()` for `rest_of`. It does not wait for the writer of a named pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def rest_of(file: BinaryIO) -> bytes:
    """The rest of a file that `open_now` has opened. A named pipe without a writer is empty. Raises OSError.

    The error is an UnendingFileError for a pipe or a device, such as a terminal, that stays silent or has no end.
    """
    descriptor = file.fileno()
    if S_ISREG(os.fstat(descriptor).st_mode):
        return file.read()
    found = bytearray()
    while chunk := _next_chunk(descriptor):
        found += chunk
        if len(found) > MAX_STREAM_BYTES:
            raise UnendingFileError(errno.EFBIG, f"it is no regular file, and has more than {MAX_STREAM_BYTES >> 20} MiB")
    return bytes(found)


def _next_chunk(descriptor: int) -> bytes:
    """The next bytes of a descriptor that does not block; none at its end."""
    while True:
        try:
            return os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            ready = select.poll()
            ready.register(descriptor, select.POLLIN)
            if not ready.poll(SILENCE_SECONDS * 1000):
                raise UnendingFileError(
                    errno.ETIMEDOUT, f"it is no regular file, and gave nothing for {SILENCE_SECONDS} s"
                ) from None


def file_bytes(path: Path) -> bytes:
    """As `Path.read_bytes`, but reads as `rest_of`. Raises OSError, or ValueError for a NUL character."""
    with open(path, "rb", opener=open_now) as file:
        return rest_of(file)


def file_text(path: Path) -> str:
    """The text of `file_bytes` in UTF-8, with line feeds at the ends of lines. Raises also UnicodeDecodeError."""
    return io.TextIOWrapper(io.BytesIO(file_bytes(path)), encoding="utf-8").read()


def read_remedy(error: OSError, otherwise: str) -> str:
    """The remedy for a file that can't be read: that of its path, if no file can be there."""
    if isinstance(error, UnendingFileError):
        return "name a regular file"
    if error.errno in open_files.OWN_ERRORS:
        return open_files.remedy(error)
    return _UNUSABLE.get(error.errno or 0, otherwise)


def write_remedy(error: OSError, path: Path) -> str:
    """The remedy if a file or a folder can't be written. It names the file of the error, or `path` if the error has none."""
    if error.errno in open_files.OWN_ERRORS:
        return open_files.remedy(error)
    named = error.filename2 or error.filename or path  # of a rename: the file that could not be replaced
    return _UNWRITABLE.get(error.errno or 0, f"{_NO_ROOM}, or {_NO_RIGHT}").replace("{}", str(named))


def path_fault(path: Path, *, folder: bool) -> tuple[str, str] | None:
    """The message and the remedy for a path at which no folder (or no file) can be. None if one can be, or is there.

    A path that the present user can't look at has no fault: Weir may run as another user.
    """
    remedy = "give a folder; it is made if it is missing" if folder else "give the path of a file"
    try:
        mode = path.stat().st_mode
    except NotADirectoryError:
        return f"lies below {_file_above(path)}, and that is a file, not a folder", _BELOW_A_FILE
    except ValueError:
        return "holds a NUL character", remedy
    except OSError as error:
        if error.errno in _UNUSABLE:
            return f"can't be used: {error.strerror}", _UNUSABLE[error.errno]
        return None
    if folder:
        return None if S_ISDIR(mode) else ("is a file", remedy)
    if S_ISDIR(mode):
        return "is a folder, where Weir needs a file", remedy
    # Each save replaces the file by rename, also a device such as /dev/null.
    return None if S_ISREG(mode) else ("is not a regular file, and Weir would replace it", remedy)


def new_file_fault(path: Path, option: str) -> tuple[str, str] | None:
    """The message and the remedy if the present user can make no file at this path. `option` gives another path."""
    folder = path.parent
    try:
        if S_ISDIR(mode_at(path)):
            return "is a folder", f"name a new file in it with {option}"
        if not S_ISDIR(mode_at(folder)):
            return f"the folder {folder} does not exist", f"create it, or name another file with {option}"
        closed = not os.access(folder, os.W_OK | os.X_OK)
    except PermissionError:
        closed = True
    if closed:
        return "can't be written: no permission to write to its folder", f"name a file in another folder with {option}"
    return None


def mode_at(path: Path) -> int:
    """The mode of the file or folder at this path, or 0 if there is none.

    Raises PermissionError if the present user can't look into a folder above. `Path.exists()` does so up to Python 3.13 only.
    """
    try:
        return path.stat().st_mode
    except PermissionError:
        raise
    except (OSError, ValueError):  # of a NUL character
        return 0


def _file_above(path: Path) -> Path:
    return next((each for each in path.parents if each.exists() and not each.is_dir()), path.parent)
