"""The ledger of a gateway process without brokers: changes by a reload, and events at exit."""

import gzip
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from gateway.events import ConfigApplied, Event, UsageSample, VolumeStateChanged, from_line
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.process

NOBODY = "127.0.0.1:1"
NEVER = 3_600


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Weir]]:
    with ExitStack() as running:

        def begin(ledger_keys: Mapping[str, object] = MappingProxyType({}), **config: Any) -> Weir:
            ledger = {"path": str(tmp_path / "ledger"), "flush_seconds": NEVER, "rotate_seconds": NEVER, **ledger_keys}
            return running.enter_context(Weir(tmp_path, NOBODY, {"ledger": ledger, **config}, wait="/livez"))

        yield begin


def written(path: Path) -> list[Event]:
    """Return the events of all finished files."""
    files = sorted((path / "ledger").rglob("weir-*.jsonl.gz"))
    return [from_line(line) for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]


def test_reload_changes_rotation(start: Callable[..., Weir], tmp_path: Path) -> None:
    weir = start()
    ledger = {**weir.config["ledger"], "flush_seconds": 1, "rotate_seconds": 1}
    weir.write_config(weir.config | {"ledger": ledger})
    (applied,) = wait_until(lambda: written(tmp_path), "a file is finished")
    assert isinstance(applied, ConfigApplied)
    assert "ledger.rotate_seconds: 3600.0 -> 1.0" in applied.changes


def test_usage_of_last_minute_is_written_at_exit(start: Callable[..., Weir], tmp_path: Path) -> None:
    weir = start(quotas={"entities": [{"ip": "<default>", "connection_creation_rate": 100}]})
    with socket.create_connection(("127.0.0.1", weir.ports[0]), timeout=30.0):
        wait_until(lambda: weir.metric("weir_connections_accepted_total"), "the client is admitted")
    weir.stop()
    samples = [event for event in written(tmp_path) if isinstance(event, UsageSample)]
    assert [(sample.kind, sample.ip, sample.amount) for sample in samples] == [("connection", "127.0.0.1", 1.0)]


def test_unwritable_ledger_topic_is_reported(start: Callable[..., Weir]) -> None:
    weir = start(ledger_keys={"topic": "throttles", "flush_seconds": 1})
    weir.write_config(weir.config | {"connections": {"drain_seconds": 1}})  # an event to write
    wait_until(lambda: "weir_ledger_topic_connected 0.0" in weir.get("/metrics"), "a write has failed")
    assert weir.metric("weir_ledger_topic_dropped_total") == 0


def test_lines_for_absent_brokers_are_saved_at_exit(start: Callable[..., Weir], tmp_path: Path) -> None:
    weir = start(ledger_keys={"topic": "throttles", "flush_seconds": 1})
    weir.write_config(weir.config | {"connections": {"drain_seconds": 1}})  # an event to write
    wait_until(lambda: "weir_ledger_topic_connected 0.0" in weir.get("/metrics"), "a write has failed")
    weir.stop()
    (file,) = (tmp_path / "ledger").glob("_unsent-*")
    assert [from_line(line) for line in file.read_bytes().splitlines()[1:]] == written(tmp_path)
    assert f"the next start sends them from {file}" in weir.log()


@pytest.mark.parametrize(
    ("when_unknown", "enforce", "expected"),
    [
        ("PAUSE", True, [("OPEN", "PAUSE"), ("PAUSE", "OPEN")]),
        ("PAUSE", False, [("OPEN", "PAUSE"), ("PAUSE", "OPEN")]),
        ("OPEN", True, [("OPEN", "OPEN")]),
    ],
)
def test_first_volume_state_and_pause_end_are_written(
    start: Callable[..., Weir], tmp_path: Path, when_unknown: str, enforce: bool, expected: list[tuple[str, str]]
) -> None:
    """Without the end, reports would extend a pause beyond the gateway's life. The usage of the volumes is unknown."""
    weir = start(quotas={"volumes": {"source": "topic", "when_unknown": when_unknown, "enforce": enforce}})
    wait_until(lambda: "volumes: " in weir.log(), "the volumes have been judged")
    weir.stop()
    changes = [event for event in written(tmp_path) if isinstance(event, VolumeStateChanged)]
    assert [(change.previous, change.state) for change in changes] == expected
    assert {change.enforced for change in changes} == {enforce}
