"""Locks between processes."""

import errno
import fcntl
from pathlib import Path

import pytest

from gateway.files.flock import LockHeldError, only_holder


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
