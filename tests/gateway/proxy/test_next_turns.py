"""The turns of connections with long requests."""

import asyncio

import pytest

from gateway import clock
from gateway.proxy.next_turns import NextTurns


class Loop:
    """Long requests, each of three parts, that take `seconds` of CPU time a part."""

    def __init__(self, monkeypatch, seconds=1.0):
        self.turns = NextTurns()
        self.now = 0.0
        self.seconds = seconds
        self.served = []
        self.errors = []
        monkeypatch.setattr(clock, "busy", lambda: self.now)
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.errors.append(context))

    def wait(self, name, parts=3):
        def take():
            self.served.append(name)
            self.now += self.seconds
            if parts > 1:
                self.wait(name, parts - 1)

        self.turns.add(take)

    async def turn(self, others=0.0):
        """One turn of the event loop, in which other callbacks take so many seconds; returns those that had a turn."""
        self.now += others
        self.served.clear()
        await asyncio.sleep(0)
        assert not self.errors
        return "".join(self.served)


@pytest.fixture
async def loop(monkeypatch):
    return Loop(monkeypatch)


async def test_connections_take_turns_in_order(loop):
    for name in "abc":
        loop.wait(name)
    assert [await loop.turn() for _ in range(10)] == [*"abcabcabc", ""]


async def test_newcomer_waits_for_those_before_it(loop):
    loop.wait("a")
    loop.wait("b")
    assert await loop.turn() == "a"
    loop.wait("c")
    assert [await loop.turn() for _ in range(4)] == [*"bacb"]


async def test_turns_take_as_long_as_the_rest_of_the_loop(loop):
    for name in "abcd":
        loop.wait(name)
    assert await loop.turn(others=2.5) == "abc"
    assert await loop.turn(others=0.5) == "d"
    assert await loop.turn(others=100.0) == "abcdabcd"
    assert await loop.turn() == ""


async def test_idle_time_gives_no_longer_turns(loop):
    loop.wait("a", parts=1)
    assert await loop.turn() == "a"
    loop.now += 100.0
    loop.wait("b")
    loop.wait("c")
    assert await loop.turn() == "b"
