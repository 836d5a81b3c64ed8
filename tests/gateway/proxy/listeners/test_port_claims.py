"""Processes that agree on which broker a port is for."""

import os
from errno import EADDRINUSE, EMFILE
from pathlib import Path

import pytest

from gateway.proxy.listeners.port_claims import PortClaims


def nobody() -> None:
    """Nobody else listens there."""


def test_a_port_is_the_first_ones_who_asks(tmp_path: Path) -> None:
    one, other = PortClaims(tmp_path), PortClaims(tmp_path)
    assert one.claim("127.0.0.1", 9093, 1, nobody)
    assert other.claim("127.0.0.1", 9093, 1, nobody)
    assert not other.claim("127.0.0.1", 9093, 101, nobody)
    assert other.claim("127.0.0.1", 9094, 101, nobody)
    assert not one.claim("127.0.0.1", 9094, 2, nobody)


def test_the_same_port_of_another_address_is_another(tmp_path: Path) -> None:
    claims = PortClaims(tmp_path)
    assert claims.claim("127.0.0.1", 9093, 1, nobody)
    assert claims.claim("::1", 9093, 2, nobody)


def test_a_port_that_others_have_is_nobodys(tmp_path: Path) -> None:
    def taken() -> None:
        raise OSError(EADDRINUSE, os.strerror(EADDRINUSE))

    one, other = PortClaims(tmp_path), PortClaims(tmp_path)
    with pytest.raises(OSError, match="in use"):
        one.claim("127.0.0.1", 9093, 1, taken)
    assert not other.claim("127.0.0.1", 9093, 1, nobody)
    assert not one.claim("127.0.0.1", 9093, 1, nobody)


def test_a_port_that_can_not_be_tried_is_still_to_be_had(tmp_path: Path) -> None:
    def exhausted() -> None:
        raise OSError(EMFILE, os.strerror(EMFILE))

    claims = PortClaims(tmp_path)
    with pytest.raises(OSError, match="Too many"):
        claims.claim("127.0.0.1", 9093, 1, exhausted)
    assert claims.claim("127.0.0.1", 9093, 1, nobody)


def test_only_the_first_tries(tmp_path: Path) -> None:
    tries: list[int] = []
    one, other = PortClaims(tmp_path), PortClaims(tmp_path)
    assert one.claim("127.0.0.1", 9093, 1, lambda: tries.append(1))
    assert other.claim("127.0.0.1", 9093, 1, lambda: tries.append(2))
    assert tries == [1]
