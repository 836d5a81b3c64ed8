"""Files that are replaced whole: what a failed save leaves behind."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.files.whole_file import UnsyncedError, replace_file, replace_files
from tests.gateway.conftest import full_disk


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_others_may_not_read(tmp_path: Path) -> None:
    """The state names users and clients."""
    (tmp_path / "a").touch(0o666)
    replace_file(tmp_path / "a", ["one"], durable=False)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_failed_write_leaves_no_new_files(tmp_path: Path) -> None:
    """Otherwise they take the last space of a full disk."""
    with full_disk(), pytest.raises(OSError, match="too large"):
        replace_files({tmp_path / "a": ["one"], tmp_path / "b": ["x" * 10_000]}, durable=False)
    assert list(tmp_path.iterdir()) == []


def test_error_of_a_write_names_the_file(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(OSError, match="too large") as caught:
        replace_file(tmp_path / "a", ["x" * 10_000], durable=True)
    assert caught.value.filename == str(tmp_path / "a.new")


def test_failed_sync_of_the_folder_is_no_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start reads the new file."""
    fsync = os.fsync

    def fail_for_folders(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    with pytest.raises(UnsyncedError) as caught:
        replace_file(tmp_path / "a", ["one"], durable=True)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(tmp_path))
    assert (tmp_path / "a").read_text() == "one"


def test_second_rename_that_fails_leaves_the_first(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(UnsyncedError) as caught:
        replace_files({tmp_path / "a": ["one"], tmp_path / "b": ["two"]}, durable=False)
    assert (caught.value.errno, caught.value.filename2) == (errno.EISDIR, str(tmp_path / "b"))
    assert (tmp_path / "a").read_text() == "one"


def test_failed_rename_leaves_no_new_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.raises(IsADirectoryError):
        replace_files({tmp_path / "a": ["one"], tmp_path / "b": ["two"]}, durable=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_new_file_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    """It may belong to another user: then only its folder is writable. A link would lead the write elsewhere."""
    (tmp_path / "other").write_text("stays")
    (tmp_path / "a.new").symlink_to("other")
    replace_file(tmp_path / "a", ["one"], durable=True)
    assert (tmp_path / "a").read_text() == "one"
    assert not (tmp_path / "a").is_symlink()
    assert (tmp_path / "other").read_text() == "stays"


def test_replace_follows_links_and_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "a").symlink_to("disk/kept")
    replace_file(tmp_path / "a", ["one"], durable=True)
    replace_file(tmp_path / "a", ["two"], durable=True)
    assert str((tmp_path / "a").readlink()) == "disk/kept"
    assert (tmp_path / "disk" / "kept").read_text() == "two"
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["kept"]
