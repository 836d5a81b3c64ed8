"""The drain of a process step by step, with sessions that the test controls."""

import asyncio
import logging

import pytest

from gateway.drain import _STEP_SECONDS, ENDED_PER_SECOND, Drain, Stopping
from gateway.features.connection_quotas.config import ConnectionsConfig
from gateway.observer import Outlet
from gateway.proxy.counters import Counters
from gateway.proxy.sessions import Sessions

LONG = 3_600.0


class Client:
    """An open session. `ends`: it ends at once when it drains. `closing`: it closes for another reason and ignores drains."""

    def __init__(self, house, *, ends=True, under_way=0, closing=False):
        self._house = house
        self._ends = ends
        self._closing = closing
        self.peer = "10.0.0.1:5000"
        self.last_active = 0.0
        self._under_way = under_way
        self.draining = self.half_closed = False
        self.notified, self.looked_at = asyncio.Event(), asyncio.Event()
        house.sessions.add(self)

    @property
    def under_way(self):
        self.looked_at.set()
        return self._under_way

    def drain(self):
        if self._closing:
            self._house.steps.append("not notified")
            return
        self.draining = True
        self.notified.set()
        self._house.steps.append("notified")
        if self._ends:
            self.leave()

    def leave(self):
        self.half_closed = True
        self._house.sessions.remove(self)


class Listener:
    """A client connects just before the listener closes, and is still in its TLS handshake."""

    def __init__(self, house, late):
        self._house = house
        self._late = late
        self.starting = 0
        self.closed = asyncio.Event()

    def finish(self):
        self._house.steps.append("closed")
        self.starting = self._late
        self.closed.set()

    def begins(self):
        self.starting -= 1
        return Client(self._house)


class House:
    def __init__(self, *, late=0, **config):
        self.sessions = Sessions(Counters(), Outlet(), max_idle_seconds=600.0)
        self.steps = []
        self.listener = Listener(self, late)
        self.drain = Drain(self.sessions, [self.listener], lambda: ConnectionsConfig(**config))
        self.at_once = asyncio.Event()

    def run(self):
        return asyncio.create_task(self.drain.run(self.at_once))


def summary(caplog):
    (record,) = (record for record in caplog.records if record.getMessage().startswith("drained in"))
    return record.drained, record.cut, record.levelno == logging.WARNING


async def turns(count=20):
    """Let all tasks run that can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_drain_stops_accepting_then_drains_all(caplog):
    caplog.set_level(logging.INFO)
    house = House(drain_seconds=LONG)
    for _ in range(3):
        Client(house)
    await house.run()
    assert house.steps == ["closed", "notified", "notified", "notified"]
    assert summary(caplog) == (3, 0, False)


async def test_delay_announces_the_drain_but_serves():
    house = House(drain_delay_seconds=LONG, drain_seconds=LONG)
    client = Client(house)
    running = house.run()
    await turns()
    assert house.drain.active
    assert house.steps == []
    assert not client.draining
    house.at_once.set()
    await running


async def test_drain_lasts_until_last_client_leaves(caplog):
    caplog.set_level(logging.INFO)
    house = House(drain_seconds=LONG)
    quick, slow = Client(house), Client(house, ends=False, under_way=2)
    running = house.run()
    await slow.notified.wait()
    await turns()
    assert quick.half_closed
    assert not running.done()
    slow.leave()
    await running
    assert summary(caplog) == (2, 0, False)


async def test_client_from_a_late_handshake_is_drained(caplog):
    caplog.set_level(logging.INFO)
    house = House(drain_seconds=LONG, late=1)
    running = house.run()
    await house.listener.closed.wait()
    await turns()
    assert not running.done()
    newcomer = house.listener.begins()
    await running
    assert newcomer.half_closed
    assert summary(caplog) == (1, 0, False)


async def test_remaining_clients_are_cut_at_the_deadline(caplog):
    caplog.set_level(logging.INFO)
    house = House(drain_seconds=0.1)
    Client(house)
    Client(house, ends=False, under_way=2)
    await house.run()
    assert summary(caplog) == (1, 1, True)
    assert "1 closed with 2 unanswered requests" in caplog.text


async def test_half_closed_client_is_not_counted_as_cut(caplog):
    caplog.set_level(logging.INFO)
    house = House(drain_seconds=0.1)
    Client(house, ends=False).half_closed = True
    await house.run()
    assert summary(caplog) == (1, 0, False)


async def test_zero_drain_seconds_cut_busy_clients(caplog):
    caplog.set_level(logging.INFO)
    house = House(drain_seconds=0)
    Client(house, ends=False, under_way=1)
    await house.run()
    assert summary(caplog) == (0, 1, True)


@pytest.mark.parametrize("delay", [0, LONG])
async def test_second_signal_ends_drain_at_once(caplog, delay):
    caplog.set_level(logging.INFO)
    house = House(drain_seconds=LONG, drain_delay_seconds=delay)
    Client(house, ends=False, under_way=5)
    running = house.run()
    await turns()
    house.at_once.set()
    await running
    assert summary(caplog) == (0, 1, True)


class Clock:
    """A clock that only the drain's own steps advance."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self._sleep = asyncio.sleep
        monkeypatch.setattr("gateway.drain.clock.monotonic", lambda: self.now)
        monkeypatch.setattr("gateway.drain.asyncio.sleep", self._step)

    async def _step(self, seconds):
        if seconds > _STEP_SECONDS:
            await self._sleep(seconds)
            return
        self.now += seconds
        await self._sleep(0)


async def test_many_clients_are_drained_over_time(monkeypatch):
    Clock(monkeypatch)
    house = House(drain_seconds=LONG)
    clients = [Client(house) for _ in range(int(ENDED_PER_SECOND))]
    running = house.run()
    await asyncio.wait([asyncio.create_task(client.notified.wait()) for client in clients], return_when=asyncio.FIRST_COMPLETED)
    told_at_first = sum(client.draining for client in clients)
    assert 0 < told_at_first < len(clients)
    await running
    assert all(client.half_closed for client in clients)


async def test_large_number_is_drained_within_half_the_time(monkeypatch):
    clock = Clock(monkeypatch)
    house = House(drain_seconds=10.0)
    clients = [Client(house) for _ in range(int(ENDED_PER_SECOND) * 10)]
    await house.run()
    assert all(client.half_closed for client in clients)
    assert 4.0 < clock.now <= 5.0


async def test_drain_logs_its_progress(caplog, monkeypatch):
    monkeypatch.setattr("gateway.drain.REPORT_SECONDS", 0.01)
    caplog.set_level(logging.INFO)
    house = House(drain_seconds=LONG)
    slow = Client(house, ends=False, under_way=2)
    running = house.run()
    await slow.looked_at.wait()
    await turns()
    assert "1 connections are left, with 2 requests under way" in caplog.text
    slow.leave()
    await running


async def test_closing_client_is_awaited_but_not_counted(caplog):
    caplog.set_level(logging.INFO)
    house = House(drain_seconds=LONG, late=1)
    closing = Client(house, closing=True)
    running = house.run()
    await house.listener.closed.wait()
    await turns()
    newcomer = house.listener.begins()  # so that the drain checks again
    await newcomer.notified.wait()
    await turns()
    assert not running.done()
    closing.leave()
    await running
    assert house.steps == ["closed", "not notified", "notified"]
    assert summary(caplog) == (1, 0, False)


async def test_worker_signals_never_cut():
    stopping = Stopping()
    stopping.drain()
    stopping.drain()
    assert (stopping.requested.is_set(), stopping.at_once.is_set()) == (True, False)
    stopping.cut()
    assert stopping.at_once.is_set()


async def test_cut_also_asks_to_stop():
    stopping = Stopping()
    stopping.cut()
    assert stopping.requested.is_set()


async def test_first_signal_drains_and_second_cuts():
    stopping = Stopping()
    stopping.request()
    assert (stopping.requested.is_set(), stopping.at_once.is_set()) == (True, False)
    stopping.request()
    assert stopping.at_once.is_set()
