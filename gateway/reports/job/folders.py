"""Small files of this machine or of any Hadoop file system, read and written by the driver.

Java needs half a second before it reads its first file, so Python reads and writes the files of this machine.
"""

import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from stat import S_ISDIR
from typing import Any, Protocol
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from gateway.reports.job.hadoop import HadoopFolder
from gateway.reports.job.messages import UnwritableFileError, only_run


class UnreadableFolderError(OSError):
    """A folder of this machine exists, but can't be listed."""


class Folder(Protocol):
    """A folder by its path; it need not exist."""

    def exists(self) -> bool: ...

    def only_run(self, option: str) -> AbstractContextManager[None]:
        """Keep other runs out of a folder of this machine. `option` names the folder.

        Raises `InUseError` and `UnwritableFileError`.
        """

    def names(self) -> Sequence[str]:
        """The names in the folder, sorted; none if it does not exist."""

    def modified(self) -> Mapping[str, int]:
        """The time of the last change of each file and folder in the folder, in ms since 1970."""

    def lengths(self, pattern: str) -> Mapping[str, int]:
        """The length of each file by its whole path. `pattern` is that of its path in the folder, such as `date=*/*.gz`."""

    def read(self, name: str) -> str: ...

    def write(self, name: str, text: str) -> None:
        """Replace a file. On this machine, a reader finds the old text or the new one; elsewhere maybe a part."""

    def add(self, name: str, text: str) -> None:
        """Write a new file, which appears whole under its name. Raises `OSError` if it exists."""

    def add_folder(self, name: str) -> None:
        """Create a folder in the folder, and the folders above it."""

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its files."""


def folder(spark: SparkSession, path: str) -> Folder:
    """A folder of Spark's default file system, or of the one that the path names."""
    java: Any = spark.sparkContext
    default = java._jsc.hadoopConfiguration().get("fs.defaultFS")
    is_local = not urlsplit(path).scheme and urlsplit(default).scheme == "file"
    return LocalFolder(path) if is_local else HadoopFolder(spark, path)


class LocalFolder:
    """Implements `Folder` for this machine."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()

    def exists(self) -> bool:
        return self._path.exists()

    def only_run(self, option: str) -> AbstractContextManager[None]:
        return only_run(option, self._path)

    def names(self) -> Sequence[str]:
        return sorted(self.modified())

    def modified(self) -> Mapping[str, int]:
        return {file.name: status.st_mtime_ns // 1_000_000 for file, status in statuses(self._path, "*")}

    def lengths(self, pattern: str) -> Mapping[str, int]:
        return {file.as_posix(): status.st_size for file, status in statuses(self._path, pattern)}

    def read(self, name: str) -> str:
        return (self._path / name).read_text(encoding="utf-8")

    def write(self, name: str, text: str) -> None:
        # A kill or a full disk may leave this file. Spark and `State` skip names that begin with "_".
        part = self._path / f"_{name}.part"
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            part.write_bytes(text.encode("utf-8"))
            part.replace(self._path / name)
        except OSError as error:
            raise UnwritableFileError(error.errno, error.strerror, str(self._path / name)) from error

    def add(self, name: str, text: str) -> None:
        if (self._path / name).exists():
            raise FileExistsError(f"{self._path / name} can't be written: the file exists already")
        self.write(name, text)

    def add_folder(self, name: str) -> None:
        (self._path / name).mkdir(parents=True, exist_ok=True)

    def delete(self, name: str) -> None:
        path = self._path / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def statuses(folder: Path, pattern: str) -> Iterator[tuple[Path, os.stat_result]]:
    """The files and folders that match, with their status. Leaves out those that another process deletes in the meantime.

    Raises `UnreadableFolderError`.
    """
    try:
        for file in _matching(folder, pattern.split("/")):
            with suppress(FileNotFoundError):
                yield file, file.stat()
    except OSError as error:
        raise UnreadableFolderError(error.errno, error.strerror, error.filename) from error


def refuse_loops(folder: Path) -> None:
    """Raise `UnreadableFolderError` for a folder below `folder` that a link leads back to: Spark would follow it for ever."""
    above = {folder, *folder.resolve().parents}
    _refuse_loops(folder, frozenset(_identity(each.stat()) for each in above))


def _refuse_loops(folder: Path, above: frozenset[tuple[int, int]]) -> None:
    for file, status in statuses(folder, "*"):
        if S_ISDIR(status.st_mode):
            if _identity(status) in above:
                raise UnreadableFolderError(errno.ELOOP, os.strerror(errno.ELOOP), str(file))
            _refuse_loops(file, above | {_identity(status)})


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _matching(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """`names` are the patterns of the path's parts. `Path.glob` would leave out folders that the user may not list."""
    found: list[Path] = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        found += [folder / entry.name for entry in entries if fnmatchcase(entry.name, names[0])]
    for path in found:
        if names[1:]:
            yield from _matching(path, names[1:])
        else:
            yield path
