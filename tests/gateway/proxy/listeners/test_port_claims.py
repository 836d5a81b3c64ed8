"""Processes agree on the broker of each port."""

import os
import subprocess
import sys
from errno import EADDRINUSE, EMFILE

import pytest

from gateway.proxy.listeners.port_claims import PortClaims
from tests.gateway.conftest import full_disk


class Bound:
    """A socket that listens."""

    def close(self) -> None:
        """Listen no more."""


def nobody(_shared: bool) -> Bound:
    """Bind a port without another listener."""
    return Bound()


def in_use(_shared: bool) -> Bound:
    """Find another program at the port."""
    raise OSError(EADDRINUSE, os.strerror(EADDRINUSE))


def known(_node_id: int) -> bool:
    """No broker has been forgotten."""
    return True


def test_first_claim_owns_port(claims: int) -> None:
    one, other = PortClaims(claims), PortClaims(claims)
    assert one.claim("127.0.0.1", 9093, 1, nobody, known)
    assert other.claim("127.0.0.1", 9093, 1, nobody, known)
    assert not other.claim("127.0.0.1", 9093, 101, nobody, known)
    assert other.claim("127.0.0.1", 9094, 101, nobody, known)
    assert not one.claim("127.0.0.1", 9094, 2, nobody, known)


def test_same_port_of_another_address_is_separate(claims: int) -> None:
    one = PortClaims(claims)
    assert one.claim("127.0.0.1", 9093, 1, nobody, known)
    assert one.claim("::1", 9093, 2, nobody, known)


def test_port_in_use_stays_unclaimed(claims: int) -> None:
    one, other = PortClaims(claims), PortClaims(claims)
    with pytest.raises(OSError, match="in use"):
        one.claim("127.0.0.1", 9093, 1, in_use, known)
    assert not other.claim("127.0.0.1", 9093, 1, nobody, known)
    assert not one.claim("127.0.0.1", 9093, 1, nobody, known)


def test_port_that_another_program_had_can_be_claimed_again(claims: int) -> None:
    one, other = PortClaims(claims), PortClaims(claims)
    for again in ((), (9093, 9094)):
        with pytest.raises(OSError, match="in use"):
            one.claim("127.0.0.1", 9093, 1, in_use, known, again)
        with pytest.raises(OSError, match="in use"):
            other.claim("127.0.0.1", 9093, 2, in_use, known, (9093, 9094))
    assert other.claim("127.0.0.1", 9093, 2, nobody, known, (9093, 9094))
    assert not one.claim("127.0.0.1", 9093, 1, nobody, known, (9093, 9094))
    assert one.claim("127.0.0.1", 9093, 2, nobody, known)


def test_broker_with_a_port_claims_none_of_another_program(claims: int) -> None:
    """Another process has claimed that port for the broker meanwhile, and each process must have the same one."""
    one, other = PortClaims(claims), PortClaims(claims)
    with pytest.raises(OSError, match="in use"):
        one.claim("127.0.0.1", 9093, 1, in_use, known)
    assert other.claim("127.0.0.1", 9094, 1, nobody, known)
    assert not one.claim("127.0.0.1", 9093, 1, nobody, known, (9093, 9094))
    assert one.claim("127.0.0.1", 9093, 1, nobody, known, (9093, 9095)), "9094 is another listener's"


def test_broker_loses_a_port_that_another_program_took(claims: int) -> None:
    one = PortClaims(claims)
    with pytest.raises(OSError, match="in use"):
        one.claim("127.0.0.1", 9093, 1, in_use, known)
    assert one.claim("127.0.0.1", 9094, 1, nobody, known)
    with pytest.raises(OSError, match="in use"):
        one.claim("127.0.0.1", 9094, 1, in_use, known)
    assert one.claim("127.0.0.1", 9093, 1, nobody, known, (9093, 9094))
    assert not one.claim("127.0.0.1", 9094, 1, nobody, known), "each broker has one port"


def test_failed_bind_leaves_port_claimable(claims: int) -> None:
    def exhausted(_shared: bool) -> Bound:
        raise OSError(EMFILE, os.strerror(EMFILE))

    one = PortClaims(claims)
    with pytest.raises(OSError, match="Too many"):
        one.claim("127.0.0.1", 9093, 1, exhausted, known)
    assert one.claim("127.0.0.1", 9093, 1, nobody, known)


@pytest.mark.parametrize("bytes_left", [0, 10, 17])
def test_full_disk_leaves_port_claimable(claims: int, bytes_left: int) -> None:
    one = PortClaims(claims)
    with full_disk(bytes_left), pytest.raises(OSError, match=r"too large|No space"):
        one.claim("127.0.0.1", 9093, 12, nobody, known)
    assert one.claim("127.0.0.1", 9093, 1, nobody, known)


def test_only_first_claim_tries_to_bind(claims: int) -> None:
    tries: list[bool] = []

    def bind(shared: bool) -> Bound:
        tries.append(shared)
        return Bound()

    one, other = PortClaims(claims), PortClaims(claims)
    assert one.claim("127.0.0.1", 9093, 1, bind, known)
    assert tries == [False, True]
    assert other.claim("127.0.0.1", 9093, 1, bind, known)
    assert tries == [False, True, True]


def test_port_of_forgotten_broker_is_free(claims: int) -> None:
    one, other = PortClaims(claims), PortClaims(claims)
    assert one.claim("127.0.0.1", 9093, 1, nobody, known)
    assert other.claim("127.0.0.1", 9093, 101, nobody, lambda node_id: node_id != 1)
    assert not one.claim("127.0.0.1", 9093, 1, nobody, known), "the last claim counts"
    assert one.claim("127.0.0.1", 9093, 101, nobody, known)


def test_port_that_another_process_serves_is_not_free(claims: int) -> None:
    """It may have clients of a broker that this process has forgotten. The port is free as soon as that process has left it."""

    def served(shared: bool) -> Bound:
        if not shared:
            raise OSError(EADDRINUSE, os.strerror(EADDRINUSE))
        return Bound()

    one = PortClaims(claims)
    assert one.claim("127.0.0.1", 9093, 1, nobody, known)
    assert not one.claim("127.0.0.1", 9093, 101, served, lambda _: False)
    assert one.claim("127.0.0.1", 9093, 1, served, known), "the broker has come back"
    assert one.claim("127.0.0.1", 9093, 101, nobody, lambda _: False)


def test_first_cluster_holds_for_all_processes(claims: int) -> None:
    one, other = PortClaims(claims), PortClaims(claims)
    assert one.agree_on_cluster("an id\nwith lines") == "an id\nwith lines"
    assert other.agree_on_cluster("another") == "an id\nwith lines"


def test_port_that_begins_like_a_claimed_port_is_separate(claims: int) -> None:
    one = PortClaims(claims)
    assert one.claim("127.0.0.1", 19093, 1, nobody, known)
    assert one.claim("127.0.0.1", 1909, 2, nobody, known)
    assert one.claim("27.0.0.1", 19093, 3, nobody, known)


def test_broker_that_begins_like_the_owner_does_not_own_port(claims: int) -> None:
    one = PortClaims(claims)
    assert one.claim("127.0.0.1", 9093, 12, nobody, known)
    assert not one.claim("127.0.0.1", 9093, 1, nobody, known)


@pytest.mark.process
def test_other_processes_wait_while_one_binds(claims: int) -> None:
    code = """\
import fcntl, sys
try:
    fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("waits")
"""

    def ask_another_process(shared: bool) -> Bound:
        command = [sys.executable, "-c", code, str(claims)]
        printed.append(subprocess.run(command, pass_fds=(claims,), capture_output=True, text=True, check=True).stdout)
        return Bound()

    printed: list[str] = []
    assert PortClaims(claims).claim("127.0.0.1", 9093, 1, ask_another_process, known)
    ask_another_process(False)
    assert printed == ["waits\n", "waits\n", ""]
