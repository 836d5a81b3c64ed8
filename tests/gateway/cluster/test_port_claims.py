"""Processes that agree on which broker a port is for."""

from pathlib import Path

from gateway.cluster.port_claims import PortClaims


def test_a_port_is_the_first_ones_who_asks(tmp_path: Path) -> None:
    one, other = PortClaims(tmp_path), PortClaims(tmp_path)
    assert one.claim("127.0.0.1", 9093, 1)
    assert other.claim("127.0.0.1", 9093, 1)
    assert not other.claim("127.0.0.1", 9093, 101)
    assert other.claim("127.0.0.1", 9094, 101)
    assert not one.claim("127.0.0.1", 9094, 2)


def test_the_same_port_of_another_address_is_another(tmp_path: Path) -> None:
    claims = PortClaims(tmp_path)
    assert claims.claim("127.0.0.1", 9093, 1)
    assert claims.claim("::1", 9093, 2)
