"""Remedies for files that can't be read or written, and reads of pipes."""

import errno
import os
from array import array
from concurrent.futures import ThreadPoolExecutor
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD

import pytest

from gateway.files import path_faults
from gateway.files.path_faults import READABLE, file_bytes, file_text, new_file_fault, read_remedy, write_remedy
from tests.weir_process import wait_until

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


def _unread(descriptor: int) -> int:
    """The number of bytes in a pipe."""
    number = array("i", [0])
    ioctl(descriptor, FIONREAD, number)
    return number[0]


def test_pipe_is_read_while_its_writer_pauses(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with path.open("r+b", buffering=0) as writer, ThreadPoolExecutor() as pool:
        reading = pool.submit(file_bytes, path)
        for part in (b"first ", b"second"):
            writer.write(part)
            wait_until(lambda: not _unread(writer.fileno()), "a read")
        writer.close()
        assert reading.result() == b"first second"


def test_silent_writer_is_an_error_with_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_faults, "SILENCE_SECONDS", 0.05)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with path.open("r+b", buffering=0), pytest.raises(path_faults.UnendingFileError) as raised:
        file_bytes(path)
    assert read_remedy(raised.value, READABLE) == "name a regular file"


def test_text_has_line_feeds_only(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a=\xc3\xbc\r\nb\rc\n")
    assert file_text(path) == path.read_text(encoding="utf-8") == "a=ü\nb\nc\n"


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
