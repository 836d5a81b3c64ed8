"""Processes agree on the broker of each port."""

import os
import resource
import subprocess
import sys
from errno import EADDRINUSE, EMFILE

import pytest

from gateway.proxy.listeners.port_claims import PortClaims


def nobody() -> None:
    """A port without another listener."""


def test_first_claim_owns_port(claims: int) -> None:
    one, other = PortClaims(claims), PortClaims(claims)
    assert one.claim("127.0.0.1", 9093, 1, nobody)
    assert other.claim("127.0.0.1", 9093, 1, nobody)
    assert not other.claim("127.0.0.1", 9093, 101, nobody)
    assert other.claim("127.0.0.1", 9094, 101, nobody)
    assert not one.claim("127.0.0.1", 9094, 2, nobody)


def test_same_port_of_another_address_is_separate(claims: int) -> None:
    one = PortClaims(claims)
    assert one.claim("127.0.0.1", 9093, 1, nobody)
    assert one.claim("::1", 9093, 2, nobody)


def test_port_in_use_stays_unclaimed(claims: int) -> None:
    def taken() -> None:
        raise OSError(EADDRINUSE, os.strerror(EADDRINUSE))

    one, other = PortClaims(claims), PortClaims(claims)
    with pytest.raises(OSError, match="in use"):
        one.claim("127.0.0.1", 9093, 1, taken)
    assert not other.claim("127.0.0.1", 9093, 1, nobody)
    assert not one.claim("127.0.0.1", 9093, 1, nobody)


def test_failed_bind_leaves_port_claimable(claims: int) -> None:
    def exhausted() -> None:
        raise OSError(EMFILE, os.strerror(EMFILE))

    one = PortClaims(claims)
    with pytest.raises(OSError, match="Too many"):
        one.claim("127.0.0.1", 9093, 1, exhausted)
    assert one.claim("127.0.0.1", 9093, 1, nobody)


@pytest.mark.parametrize("bytes_left", [0, 10, 17])
def test_full_disk_leaves_port_claimable(claims: int, bytes_left: int) -> None:
    one = PortClaims(claims)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, before[1]))
    try:
        with pytest.raises(OSError, match=r"too large|No space"):
            one.claim("127.0.0.1", 9093, 12, nobody)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert one.claim("127.0.0.1", 9093, 1, nobody)


def test_only_first_claim_tries_to_bind(claims: int) -> None:
    tries: list[int] = []
    one, other = PortClaims(claims), PortClaims(claims)
    assert one.claim("127.0.0.1", 9093, 1, lambda: tries.append(1))
    assert other.claim("127.0.0.1", 9093, 1, lambda: tries.append(2))
    assert tries == [1]


def test_port_that_begins_like_a_claimed_port_is_separate(claims: int) -> None:
    one = PortClaims(claims)
    assert one.claim("127.0.0.1", 19093, 1, nobody)
    assert one.claim("127.0.0.1", 1909, 2, nobody)
    assert one.claim("27.0.0.1", 19093, 3, nobody)


def test_broker_that_begins_like_the_owner_does_not_own_port(claims: int) -> None:
    one = PortClaims(claims)
    assert one.claim("127.0.0.1", 9093, 12, nobody)
    assert not one.claim("127.0.0.1", 9093, 1, nobody)


@pytest.mark.process
def test_other_processes_wait_while_one_binds(claims: int) -> None:
    code = """\
import fcntl, sys
try:
    fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("waits")
"""

    def ask_another_process() -> None:
        command = [sys.executable, "-c", code, str(claims)]
        printed.append(subprocess.run(command, pass_fds=(claims,), capture_output=True, text=True, check=True).stdout)

    printed: list[str] = []
    assert PortClaims(claims).claim("127.0.0.1", 9093, 1, ask_another_process)
    ask_another_process()
    assert printed == ["waits\n", ""]
