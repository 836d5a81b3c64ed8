"""Atomic replacement of files."""

import os
from collections.abc import Iterable
from pathlib import Path


def real_path(path: Path) -> Path:
    """The target of a path through symbolic links. It need not exist."""
    return Path(os.path.realpath(path))


def replace_file(path: Path, lines: Iterable[str], *, durable: bool) -> None:
    """Write a file beside `path` and rename it. Raises OSError; the earlier content stays then.

    A symbolic link stays: its target is replaced. After a kill, the file is either the old or the new one. `durable`: after
    the return, the new file survives a loss of power.
    """
    path = real_path(path)
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.writelines(lines)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    new.replace(path)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name has to be on the disk as well
        finally:
            os.close(folder)
