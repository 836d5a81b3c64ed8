"""Messages about an address that cannot be bound, or may be taken at the start."""

import errno
import socket
from pathlib import Path

import pytest

from gateway.binding import outgoing_port_warnings, why_not
from tests.gateway.config.texts import listeners, parsed


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            OSError(errno.EADDRINUSE, "error while attempting to bind on address ('127.0.0.1', 1): address already in use"),
            "Address already in use — stop the other process on this port, or choose another port",
        ),
        (OSError(errno.EACCES, "Permission denied"), "Permission denied — choose a port above 1023, or give Weir the right"),
        (OSError(errno.EADDRNOTAVAIL, "no"), "Cannot assign requested address — set admin.host to an address of this machine"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known — set admin.host to an address"),
        (OSError("odd"), "odd — set admin.host"),
    ],
    ids=["in use", "forbidden", "elsewhere", "unknown", "without a number"],
)
def test_bind_error_has_cause_and_remedy(error: OSError, says: str) -> None:
    assert why_not(error, "admin.host").startswith(says)


def outgoing(tmp_path: Path, port: int, reserved: str = "", ports: str = "32768\t60999\n") -> list[str]:
    """The warnings of a listener with the bootstrap port and 100 ports for brokers."""
    (tmp_path / "ip_local_port_range").write_text(ports)
    (tmp_path / "ip_local_reserved_ports").write_text(reserved + "\n")
    return list(outgoing_port_warnings(parsed(listeners(f"{{name: a, bootstrap_port: {port}}}")), tmp_path))


def test_ports_of_outgoing_connections_warn(tmp_path: Path) -> None:
    of_bootstrap, of_brokers = outgoing(tmp_path, 39092)
    assert of_bootstrap.startswith("listeners[0].bootstrap_port: 39092 is in the range of outgoing connections")
    assert of_brokers.startswith("listeners[0].broker_ports: 39093-39192 is in the range of outgoing connections")
    assert "(32768-60999)" in of_brokers
    assert "choose ports below 32768" in of_brokers


@pytest.mark.parametrize(("port", "warnings"), [(32_667, 0), (32_668, 1), (60_999, 1), (61_000, 0)])
def test_ports_warn_from_the_first_to_the_last(tmp_path: Path, port: int, warnings: int) -> None:
    assert len(outgoing(tmp_path, port)) == warnings


def test_reserved_ports_do_not_warn(tmp_path: Path) -> None:
    assert outgoing(tmp_path, 39092, reserved="8080,39092,39093-39192") == []
    assert len(outgoing(tmp_path, 39092, reserved="39092,39093-39191")) == 1


def test_unknown_range_of_ports_does_not_warn(tmp_path: Path) -> None:
    assert outgoing(tmp_path, 39092, ports="unknown") == []
    assert list(outgoing_port_warnings(parsed(listeners("{name: a, bootstrap_port: 39092}")), tmp_path / "missing")) == []
