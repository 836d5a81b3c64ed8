"""Signals that arrive while a gateway starts."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.app import Gateway, serve
from gateway.config.load import load_config
from loadtest.testkit.kafka.ports import free_port_range


@pytest.fixture
def unhandled() -> Iterator[list[int]]:
    """The SIGTERMs of this process that no event loop handles. By default, the first of them ends the process."""
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    yield received
    signal.signal(signal.SIGTERM, before)


async def test_signal_at_the_end_of_the_start_drains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unhandled: list[int]
) -> None:
    path = tmp_path / "weir.yaml"
    port = free_port_range(4)
    config = {
        "upstream": {"bootstrap_servers": [f"127.0.0.1:{port + 3}"]},  # no broker is there
        "listeners": [{"host": "127.0.0.1", "bootstrap_port": port, "broker_ports": f"{port + 1}-{port + 1}"}],
        "admin": {"port": port + 2},
    }
    path.write_text(json.dumps(config))
    start = Gateway.start

    async def start_and_signal(gateway: Gateway) -> None:
        await start(gateway)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Gateway, "start", start_and_signal)
    async with asyncio.timeout(60):
        assert await serve(path, load_config(path)) == 0
    assert not unhandled
