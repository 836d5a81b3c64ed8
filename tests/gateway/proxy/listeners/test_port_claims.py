"""Processes agree on the broker of each port."""

import os
from errno import EADDRINUSE, EMFILE
from pathlib import Path

import pytest

from gateway.proxy.listeners.port_claims import PortClaims


def nobody() -> None:
    """A port without another listener."""


def test_first_claim_owns_port(tmp_path: Path) -> None:
    one, other = PortClaims(tmp_path), PortClaims(tmp_path)
    assert one.claim("127.0.0.1", 9093, 1, nobody)
    assert other.claim("127.0.0.1", 9093, 1, nobody)
    assert not other.claim("127.0.0.1", 9093, 101, nobody)
    assert other.claim("127.0.0.1", 9094, 101, nobody)
    assert not one.claim("127.0.0.1", 9094, 2, nobody)


def test_same_port_of_another_address_is_separate(tmp_path: Path) -> None:
    claims = PortClaims(tmp_path)
    assert claims.claim("127.0.0.1", 9093, 1, nobody)
    assert claims.claim("::1", 9093, 2, nobody)


def test_port_in_use_stays_unclaimed(tmp_path: Path) -> None:
    def taken() -> None:
        raise OSError(EADDRINUSE, os.strerror(EADDRINUSE))

    one, other = PortClaims(tmp_path), PortClaims(tmp_path)
    with pytest.raises(OSError, match="in use"):
        one.claim("127.0.0.1", 9093, 1, taken)
    assert not other.claim("127.0.0.1", 9093, 1, nobody)
    assert not one.claim("127.0.0.1", 9093, 1, nobody)


def test_failed_bind_leaves_port_claimable(tmp_path: Path) -> None:
    def exhausted() -> None:
        raise OSError(EMFILE, os.strerror(EMFILE))

    claims = PortClaims(tmp_path)
    with pytest.raises(OSError, match="Too many"):
        claims.claim("127.0.0.1", 9093, 1, exhausted)
    assert claims.claim("127.0.0.1", 9093, 1, nobody)


def test_only_first_claim_tries_to_bind(tmp_path: Path) -> None:
    tries: list[int] = []
    one, other = PortClaims(tmp_path), PortClaims(tmp_path)
    assert one.claim("127.0.0.1", 9093, 1, lambda: tries.append(1))
    assert other.claim("127.0.0.1", 9093, 1, lambda: tries.append(2))
    assert tries == [1]
