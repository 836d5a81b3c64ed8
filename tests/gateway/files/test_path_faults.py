"""Remedies for files that can't be read."""

import errno

import pytest

from gateway.files.path_faults import READABLE, read_remedy


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
