"""The places of quotas are made once for all users, and not in the event loop."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway import clock
from gateway.app import Gateway
from gateway.config import places
from gateway.config.effective import EffectiveConfig
from gateway.config.model import WeirConfig
from gateway.config.places import CurrentPlaces, Places
from gateway.config.reload import Reloader
from gateway.drain import Stopping
from gateway.workers.supervisor import PrivateDirectory, Supervisor
from tests.gateway.config.texts import entities, parsed

FIRST, SECOND = (entities(f"{{user: alice, producer_byte_rate: {rate}}}") for rate in (1, 2))
END = datetime(2026, 12, 1, 6, tzinfo=UTC)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each `Places`: True if the thread of the event loop made it."""
    found: list[bool] = []

    class Noted(Places):
        def __init__(self, config: WeirConfig, file: str) -> None:
            super().__init__(config, file)
            found.append(threading.current_thread() is threading.main_thread())

    monkeypatch.setattr(places, "Places", Noted)
    return found


async def take_over(reloader: Reloader) -> None:
    reloader._take_over(await asyncio.to_thread(reloader._parse, SECOND), again=False)


def looked_up(effective: EffectiveConfig) -> float:
    """The limit that all users of the places see."""
    assert effective.places() is effective.places()
    return effective.places().quotas.entities[0].limits["producer_byte_rate"]


async def test_reload_of_a_gateway_makes_places_in_its_thread(tmp_path: Path, made: list[bool]) -> None:
    gateway = Gateway(tmp_path / "weir.yaml", parsed(FIRST))
    assert looked_up(gateway._effective) == 1
    await take_over(gateway._reloader)
    assert looked_up(gateway._effective) == 2
    assert made == [True, False]


async def test_reload_of_a_supervisor_makes_places_in_its_thread(tmp_path: Path, made: list[bool]) -> None:
    with PrivateDirectory() as directory:
        supervisor = Supervisor(tmp_path / "weir.yaml", parsed(FIRST), directory, (), Stopping())
        await take_over(supervisor._reloader)
        assert looked_up(supervisor._effective) == 2
    assert made == [True, False]


def test_places_of_other_rows_are_those_prepared(monkeypatch: pytest.MonkeyPatch, made: list[bool]) -> None:
    config = parsed(entities("{user: alice, producer_byte_rate: 1, until: 2026-12-01T06:00Z}"))
    monkeypatch.setattr(clock, "utc", lambda: END - timedelta(seconds=1))
    current = CurrentPlaces(lambda: config, "weir.yaml")
    assert current().of_entity("user=alice", "file") == "weir.yaml:5, until 2026-12-01T06:00Z"
    monkeypatch.setattr(clock, "utc", lambda: END)
    current.prepare()
    assert current().of_entity("user=alice", "file") == "weir.yaml"
    assert current() is current()
    assert len(made) == 2


def test_places_are_made_where_no_thread_has_prepared_them(made: list[bool]) -> None:
    configs = [parsed(FIRST), parsed(SECOND)]
    current = CurrentPlaces(lambda: configs[0], "weir.yaml")
    current.prepare(configs[1])
    assert current().config is configs[0]
    configs[0] = parsed(SECOND)
    assert current().config is configs[0]
    assert made == [True, True, True]
