"""Remedies for files that can't be read or written."""

import errno
import os
from pathlib import Path

import pytest

from gateway.files.path_faults import READABLE, new_file_fault, read_remedy, write_remedy

FILE = Path("/var/lib/weir/weir.state.json")


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, READABLE),
        (errno.ENOTDIR, "give a path below a folder"),
        (errno.EMFILE, "raise the service's LimitNOFILE"),
        (errno.ENFILE, "raise fs.file-max"),
    ],
)
def test_remedy_follows_from_the_error(number: int, remedy: str) -> None:
    assert remedy in read_remedy(OSError(number, "no"), READABLE)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, f"free space for {FILE}"),
        (errno.EACCES, f"let the user that runs Weir read and write {FILE} and its folder"),
        (errno.EROFS, f"make the file system of {FILE} writable"),
        (errno.ENOENT, f"make the folder of {FILE}"),
        (errno.ENAMETOOLONG, f"give a shorter path instead of {FILE}"),
        (errno.ENFILE, "the machine has reached its limit of open files: raise fs.file-max"),
        (errno.ESTALE, f"free space for {FILE}, or let the user that runs Weir read and write {FILE} and its folder"),
    ],
)
def test_remedy_for_a_write_follows_from_the_error(number: int, remedy: str) -> None:
    assert write_remedy(OSError(number, os.strerror(number)), FILE) == remedy


def test_remedy_names_the_file_of_the_error() -> None:
    lock = f"{FILE}.lock"
    error = PermissionError(errno.EACCES, os.strerror(errno.EACCES), lock)
    assert write_remedy(error, FILE) == f"let the user that runs Weir read and write {lock} and its folder"


def test_remedy_names_the_file_that_a_rename_could_not_replace() -> None:
    error = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), f"{FILE}.new", None, str(FILE))
    assert write_remedy(error, FILE) == f"remove the folder {FILE}"


@pytest.mark.parametrize("name", ["new", "sub/new"])
def test_no_file_can_be_made_below_a_closed_folder(closed_folder: Path, name: str) -> None:
    fault = new_file_fault(closed_folder / name, "--out")
    assert fault == ("can't be written: no permission to write to its folder", "name a file in another folder with --out")
