"""Files that are whole or not there: atomic replacement, and new files."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


class UnsyncedError(OSError):
    """Some files are replaced already, and then a rename or the sync of a folder has failed.

    The next start reads the new content of these files, unless a loss of power takes it away.
    """


def real_path(path: Path) -> Path:
    """The target of a path through symbolic links. It need not exist."""
    return Path(os.path.realpath(path))


def replace_file(path: Path, lines: Iterable[str], *, durable: bool) -> None:
    """Write a file beside `path` and rename it. Raises OSError; the earlier content stays then, except for UnsyncedError.

    A symbolic link stays: its target is replaced. After a kill, the file is either the old or the new one. `durable`: after
    the return, the new file survives a loss of power. The file names users, so only its owner and group may read it. The
    error names a file.
    """
    replace_files({path: lines}, durable=durable)


def replace_files(contents: Mapping[Path, Iterable[str]], *, durable: bool) -> None:
    """As `replace_file`, for several files. If one of them can't be written, all keep their earlier content.

    After a kill between two renames, some files are new and the others old.
    """
    targets: dict[Path, Path] = {}  # by their new files
    replaced = 0
    try:
        for path, lines in contents.items():
            real = real_path(path)
            new = real.with_name(f"{real.name}.new")
            targets[new] = real
            new.unlink(missing_ok=True)  # after a kill it may be there, and may belong to another user
            _fill(_open_new(new, 0o640), new, lines, durable=durable)
        for new, real in targets.items():
            new.replace(real)
            replaced += 1
        if durable:
            for folder in {real.parent for real in targets.values()}:
                _sync_folder(folder)
    except BaseException as error:
        for new in targets:  # on a full disk they would take the last space
            with suppress(OSError):
                new.unlink(missing_ok=True)
        if replaced and isinstance(error, OSError):
            raise UnsyncedError(error.errno, error.strerror, error.filename, None, error.filename2) from error
        raise


def create_file(path: Path, lines: Iterable[str], *, mode: int, durable: bool) -> None:
    """Write a file that does not exist yet. Raises FileExistsError, or another OSError; then no part of the file stays.

    `mode` has the permissions, before the umask. `durable` is as for `replace_file`.
    """
    descriptor = _open_new(path, mode)
    try:
        _fill(descriptor, path, lines, durable=durable)
        if durable:
            _sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise


def _open_new(path: Path, mode: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)


def _fill(descriptor: int, path: Path, lines: Iterable[str], *, durable: bool) -> None:
    with _error_names(path), os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.writelines(lines)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Put the new names of files on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with _error_names(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _error_names(path: Path) -> Iterator[None]:
    """Name the path in an OSError of a write or a sync, which knows only a descriptor."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
