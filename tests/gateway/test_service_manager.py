"""systemd's notifications, received as systemd does."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import clock, service_manager
from tests.weir_process import Weir

TIMEOUT = 60.0


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(address))
        receiver.settimeout(TIMEOUT)
        monkeypatch.setenv("NOTIFY_SOCKET", str(address))
        yield receiver


def received(systemd: socket.socket) -> dict[str, str]:
    lines = systemd.recv(4096).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.process
@pytest.mark.parametrize("workers", [1, 2], ids=["alone", "workers"])
def test_start_reload_and_drain_are_reported(tmp_path: Path, systemd: socket.socket, workers: int) -> None:
    config = {"workers": workers, "connections": {"drain_delay_seconds": 0.5, "drain_seconds": 100}}
    # No broker answers. systemd starts further units nevertheless, as clients can connect.
    with Weir(tmp_path, "127.0.0.1:1", config, wait="/livez") as weir:
        assert received(systemd) == {"READY": "1"}

        before = clock.monotonic() * 1e6
        weir.reload()
        message = received(systemd)
        assert before <= int(message.pop("MONOTONIC_USEC")) <= clock.monotonic() * 1e6
        assert message == {"RELOADING": "1"}
        assert received(systemd) == {"READY": "1"}

        weir.write_config({"listeners": []})
        weir.reload()
        assert received(systemd).keys() == {"RELOADING", "MONOTONIC_USEC"}
        assert received(systemd) == {"READY": "1"}, "a refused file ends the reload as well"

        weir.process.send_signal(signal.SIGTERM)
        message = received(systemd)
        assert int(message.pop("EXTEND_TIMEOUT_USEC")) >= 110_500_000
        assert message == {"STOPPING": "1"}
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        received(systemd)


def test_abstract_address_is_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = f"weir-test-{tmp_path.name}-{id(tmp_path)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        receiver.settimeout(TIMEOUT)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        service_manager.ready()
        assert received(receiver) == {"READY": "1"}


def test_missing_service_manager_is_only_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    service_manager.ready()
    assert "the service manager does not get READY" in caplog.text
    caplog.clear()
    monkeypatch.delenv("NOTIFY_SOCKET")
    service_manager.stopping(10.0)
    assert caplog.text == ""
