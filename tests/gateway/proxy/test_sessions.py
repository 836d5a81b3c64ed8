import asyncio

import pytest

from gateway.observer import Outlet
from gateway.proxy.counters import Counters
from gateway.proxy.sessions import Sessions
from gateway.steps import at_once


class Connection:
    """An open session that records how it ends."""

    def __init__(self, last_active=0.0, authenticate_by=float("inf")):
        self.last_active = last_active
        self.peer = "10.0.0.1:5000"
        self.authenticate_by = authenticate_by
        self.ended = []
        self.closing = False

    def late_to_authenticate(self, now):
        return now > self.authenticate_by

    def close(self, why):
        self.ended.append(why)
        self.closing = True

    def abort(self):
        self.ended.append("aborted")

    def drain(self):
        self.ended.append("drained")

    def reconsider(self):
        self.ended.append("reconsidered")

    def find_room(self):
        self.ended.append("found room")


@pytest.fixture
def counters():
    return Counters()


@pytest.fixture
def sessions(counters):
    return Sessions(counters, Outlet("", [counters]), max_idle_seconds=600.0)


def test_sessions_count_open_connections(sessions, counters):
    first, second = Connection(), Connection()
    sessions.add(first)
    sessions.add(second)
    assert (len(sessions), counters.connections, counters.connections_total) == (2, 2, 2)
    third = Connection()
    sessions.add(third)
    sessions.remove(first)
    assert (list(sessions), counters.connections, counters.connections_total) == ([second, third], 2, 3)


class Events:
    """Keeps the events of an outlet."""

    def __init__(self):
        self.seen = []

    def notify(self, event):
        self.seen.append(event)


def test_event_of_idle_connection_has_its_address(counters):
    events = Events()
    sessions = Sessions(counters, Outlet("", [events]), max_idle_seconds=600.0)
    sessions.add(Connection(0.0))
    sessions.close_idle(700.0)
    assert [(event.reason, event.address) for event in events.seen] == [("idle", "10.0.0.1")]


def test_idle_connection_is_closed_and_counted(sessions, counters):
    silent, late, busy = Connection(99.9), Connection(100.0), Connection(700.0)
    for each in (silent, late, busy):
        sessions.add(each)
    sessions.close_idle(700.0)
    assert (silent.ended, late.ended, busy.ended) == (["idle"], [], [])
    assert counters.rejected == {"idle": 1}


def test_slow_authentication_is_closed_even_if_busy(sessions, counters):
    busy, on_time = Connection(30.0, authenticate_by=30.0), Connection(30.0, authenticate_by=31.0)
    for each in (busy, on_time):
        sessions.add(each)
    sessions.close_idle(30.5)
    assert (busy.ended, on_time.ended) == (["authentication_timeout"], [])
    assert counters.rejected == {"authentication_timeout": 1}


@pytest.mark.parametrize("times", [{}, {"last_active": 1_000.0, "authenticate_by": 30.0}], ids=["idle", "unauthenticated"])
def test_unread_close_is_aborted_and_counted_once(sessions, counters, times):
    stuck = Connection(**times)
    sessions.add(stuck)
    for now in (1_000.0, 1_001.0):
        sessions.close_idle(now)
    assert (len(stuck.ended), stuck.ended[1]) == (2, "aborted")
    assert counters.rejected == {stuck.ended[0]: 1}


async def test_wait_empty_returns_when_last_connection_leaves(sessions):
    await sessions.wait_empty()
    first, second = Connection(), Connection()
    sessions.add(first)
    sessions.add(second)
    waiting = asyncio.ensure_future(sessions.wait_empty())
    await asyncio.sleep(0)
    sessions.remove(first)
    await asyncio.sleep(0)
    assert not waiting.done()
    sessions.remove(second)
    await waiting


async def test_canceled_wait_disturbs_no_other(sessions):
    connection = Connection()
    sessions.add(connection)
    waiting = asyncio.ensure_future(sessions.wait_empty())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    sessions.remove(connection)
    assert len(sessions) == 0


def test_all_sessions_reconsider_their_mutes(sessions):
    both = [Connection(), Connection()]
    for each in both:
        sessions.add(each)
    sessions.reconsider()
    assert [each.ended for each in both] == [["reconsidered"], ["reconsidered"]]


def test_closed_session_looks_for_no_room(sessions):
    both = [Connection(), Connection()]
    for each in both:
        sessions.add(each)
    steps = sessions.find_room()
    next(steps)
    sessions.remove(both[1])  # clients are served between the steps
    at_once(steps)
    assert [each.ended for each in both] == [["found room"], []]
