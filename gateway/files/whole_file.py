"""Files that are there whole or not at all."""

import os
from collections.abc import Iterable
from pathlib import Path


def real_path(path: Path) -> Path:
    """The file that a path leads to through symbolic links, whether or not it exists."""
    return Path(os.path.realpath(path))


def replace_file(path: Path, lines: Iterable[str], *, durable: bool) -> None:
    """Write a file beside `path` and give it that name. Raises OSError, and then what was there before stands.

    A symbolic link stays: the file that it leads to is replaced. A kill leaves the one file or the other. `durable`: so does a
    loss of power, from the return on.
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
