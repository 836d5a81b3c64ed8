import asyncio

import pytest

from gateway.session.counters import Counters
from gateway.session.sessions import Sessions


class Connection:
    """An open session that notes how it is ended."""

    def __init__(self, peer_ip="10.0.0.1", last_active=0.0):
        self.peer_ip = peer_ip
        self.last_active = last_active
        self.ended = []

    def close(self, why):
        self.ended.append(why)

    def abort(self):
        self.ended.append("aborted")

    def drain(self):
        self.ended.append("drained")

    def reconsider(self):
        self.ended.append("reconsidered")


@pytest.fixture
def counters():
    return Counters()


@pytest.fixture
def sessions(counters):
    return Sessions(counters, max_per_ip=2, max_idle_seconds=600.0)


def test_an_address_has_so_many_connections_and_no_more(sessions, counters):
    first, second, third, elsewhere = Connection(), Connection(), Connection(), Connection("10.0.0.2")
    assert [sessions.admit(each) for each in (first, second, third, elsewhere)] == [True, True, False, True]
    assert (len(sessions), counters.connections, counters.connections_total) == (3, 3, 3)
    assert counters.rejected == {"max_per_ip": 1}
    sessions.remove(third)  # which was never in
    assert counters.connections == 3
    sessions.remove(first)
    sessions.remove(first)
    assert (counters.connections, counters.connections_total) == (2, 3)
    assert sessions.admit(third)
    assert set(sessions) == {second, third, elsewhere}


def test_a_lowered_limit_closes_nobody(sessions):
    first, second = Connection(), Connection()
    sessions.admit(first)
    sessions.max_per_ip = 1
    assert not sessions.admit(second)
    assert (first.ended, len(sessions)) == ([], 1)


def test_who_was_silent_for_too_long_is_closed_and_counted(sessions, counters):
    silent, late, busy = Connection("a", 99.9), Connection("b", 100.0), Connection("c", 700.0)
    for each in (silent, late, busy):
        sessions.admit(each)
    sessions.close_idle(700.0)
    assert (silent.ended, late.ended, busy.ended) == (["idle"], [], [])
    assert counters.rejected == {"idle": 1}


async def test_it_can_be_waited_for_until_nobody_is_connected(sessions):
    await sessions.wait_empty()
    first, second = Connection(), Connection()
    sessions.admit(first)
    sessions.admit(second)
    waiting = asyncio.ensure_future(sessions.wait_empty())
    await asyncio.sleep(0)
    sessions.remove(first)
    await asyncio.sleep(0)
    assert not waiting.done()
    sessions.remove(second)
    await waiting


async def test_whoever_gave_up_waiting_is_in_nobodys_way(sessions):
    connection = Connection()
    sessions.admit(connection)
    waiting = asyncio.ensure_future(sessions.wait_empty())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    sessions.remove(connection)
    assert len(sessions) == 0
