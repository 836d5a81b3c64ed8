"""The files that clients leave to Weir."""

import errno
import os
from collections.abc import Callable

import pytest

from gateway import open_files


def test_clients_leave_some_files_and_brokers_half_of_them(limit_files: Callable[[int], None]) -> None:
    limit_files(1024)
    assert open_files.first_beyond_clients() == 1024 - 64
    assert open_files.first_beyond_brokers() == 1024 - 32


def test_small_limit_leaves_most_files_to_clients(limit_files: Callable[[int], None]) -> None:
    limit_files(100)
    assert open_files.first_beyond_clients() == 75


def test_next_file_beyond_the_first_raises() -> None:
    probe = os.open(os.devnull, os.O_RDONLY)
    os.close(probe)
    open_files.require_below(probe + 1)
    with pytest.raises(OSError, match="Weir's own") as raised:
        open_files.require_below(probe)
    assert raised.value.errno == errno.EMFILE


def test_limit_is_raised_as_far_as_it_goes(limit_files: Callable[[int], None]) -> None:
    limit_files(128)
    assert open_files.first_beyond_clients() == 96
    open_files.raise_limit()
    assert open_files.limit() > 128
    assert open_files.first_beyond_clients() == open_files.limit() - 64
