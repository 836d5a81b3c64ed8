"""Locks between processes."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from gateway.files.flock import FileLock, LockHeldError, only_holder


def test_second_holder_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    path = tmp_path / "_lock"
    with only_holder(path), pytest.raises(LockHeldError), only_holder(path):
        pass
    with only_holder(path):
        pass


def test_file_system_without_locks_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with only_holder(tmp_path / "_lock"), only_holder(tmp_path / "_lock"):
        pass


def test_one_holder_at_a_time_until_it_releases(tmp_path: Path) -> None:
    one, other = FileLock("state.path", tmp_path / "a"), FileLock("state.path", tmp_path / "a")
    assert (one.take(), one.take(), other.take()) == (True, True, False)
    one.release()
    assert other.take()


def test_nfs_locks_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def nfs_flock(descriptor: int, operation: int) -> None:
        """As flock(2) says of NFS: the file must be open for writing."""
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(descriptor, operation)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", nfs_flock)
    one, other = FileLock("state.path", tmp_path / "a"), FileLock("state.path", tmp_path / "a")
    assert (one.take(), other.take(), caplog.messages) == (True, False, [])


def test_lock_file_of_another_user_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def readable_only(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise PermissionError(errno.EACCES, "Permission denied")
        return os_open(path, flags, mode)

    (tmp_path / "a.lock").touch()
    os_open = os.open
    monkeypatch.setattr(os, "open", readable_only)
    one, other = FileLock("state.path", tmp_path / "a"), FileLock("state.path", tmp_path / "a")
    assert (one.take(), other.take()) == (True, False)


def test_links_to_one_file_have_one_lock(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "disk" / "kept")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert FileLock("state.path", tmp_path / "a").take()
    assert not FileLock("state.path", tmp_path / "b").take()
    assert not FileLock("state.path", tmp_path / "disk" / "kept").take()
