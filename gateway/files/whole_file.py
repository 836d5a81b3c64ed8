"""Atomic replacement of files."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path


def real_path(path: Path) -> Path:
    """The target of a path through symbolic links. It need not exist."""
    return Path(os.path.realpath(path))


def replace_file(path: Path, lines: Iterable[str], *, durable: bool) -> None:
    """Write a file beside `path` and rename it. Raises OSError; the earlier content stays then.

    A symbolic link stays: its target is replaced. After a kill, the file is either the old or the new one. `durable`: after
    the return, the new file survives a loss of power.
    """
    replace_files({path: lines}, durable=durable)


def replace_files(contents: Mapping[Path, Iterable[str]], *, durable: bool) -> None:
    """As `replace_file`, for several files. If one of them can't be written, all keep their earlier content.

    After a kill between two renames, some files are new and the others old.
    """
    targets: dict[Path, Path] = {}  # by the new files that Weir has made
    try:
        for path, lines in contents.items():
            real = real_path(path)
            new = real.with_name(f"{real.name}.new")
            new.unlink(missing_ok=True)  # after a kill it may be there, and may belong to another user
            with new.open("x", encoding="utf-8") as file:
                targets[new] = real
                file.writelines(lines)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
        for new, real in targets.items():
            new.replace(real)
    except BaseException:
        for new in targets:  # on a full disk they would take the last space
            with suppress(OSError):
                new.unlink(missing_ok=True)
        raise
    if durable:
        for folder in {real.parent for real in targets.values()}:
            _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """Put the new names of files on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
