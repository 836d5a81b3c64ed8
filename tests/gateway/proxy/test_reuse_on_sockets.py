"""A client gets the broker's connection of one that has gone, over TCP and over TLS."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from gateway.cluster.kept_connections import STORM, KeptConnections
from gateway.proxy.sessions import ANSWER_SECONDS
from loadtest.testkit.certificates import Authority
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.test_draining_sockets import HOST, Place, begin, on_uvloop
from tests.gateway.proxy.transcript import START
from tests.gateway.running import until


class StormyPlace(Place):
    """A gateway that has more than a few short connections."""

    async def __aenter__(self):
        await super().__aenter__()
        address = self._broker.sockets[0].getsockname()
        peer = (*address, "" if self._dial_tls is None else HOST)
        self.kept = kept = KeptConnections(self.counters)
        for _ in range(STORM):
            kept.take(peer, asyncio.Protocol())
        kept.tick(START)
        self._open.callback(kept.close)
        self._host = replace(
            self._host,
            dial_at_once=lambda protocol: kept.take(peer, protocol) or self._dial_at_once(protocol),
            keep=lambda broker: kept.keep(broker, START),
        )
        return self


@pytest.fixture(params=["tcp", "broker's tls"])
def make_place(request, tmp_path):
    authority = Authority(tmp_path) if request.param == "broker's tls" else None
    return partial(StormyPlace, None, authority, own=True)


async def served(place, number):
    """A client that has the answer to its Produce. Returns its writer and the broker's end."""
    client, to_gateway, broker, to_client, _ = await begin(place, m.produce(number))
    to_client.write(m.produced(number))
    assert await client.readexactly(len(m.produced(number))) == m.produced(number)
    return to_gateway, broker, to_client


async def gone(place, to_gateway):
    to_gateway.close()
    await until(lambda: not len(place.sessions))


@on_uvloop
async def test_next_client_is_served_by_the_same_connection(place):
    to_gateway, broker, to_client = await served(place, 1)
    await gone(place, to_gateway)
    client, to_gateway = await place.client()
    for number in (2, 3):
        to_gateway.write(m.produce(number))
        assert await broker.readexactly(len(m.produce(number))) == m.produce(number)
        to_client.write(m.produced(number))
        assert await client.readexactly(len(m.produced(number))) == m.produced(number)
    assert len(place.attempts) == place.counters.connections_reused == 1
    to_client.close()
    assert await client.read() == b""


@on_uvloop
async def test_unanswered_request_ends_the_connection(place):
    to_gateway, broker, _ = await served(place, 1)
    to_gateway.write(m.produce(2))
    await broker.readexactly(len(m.produce(2)))
    session = await place.session()
    to_gateway.close()
    await until(lambda: session.draining)
    place.sessions.close_idle(session.last_active + ANSWER_SECONDS + 1.0)
    assert await broker.read() == b""


@on_uvloop
async def test_late_answer_reaches_no_other_client(place):
    """The broker sends more than it was asked for, right behind the answer that its client has got."""
    to_gateway, broker, to_client = await served(place, 1)
    await gone(place, to_gateway)
    to_client.write(m.produced(2))
    assert await broker.read() == b"", "the gateway closes it"
    _, to_gateway, _, _, _ = await begin(place, m.produce(2))
    assert len(place.attempts) == 2
    to_gateway.close()


@on_uvloop
async def test_session_of_kept_connection_lets_go_of_its_core(place):
    to_gateway, _, _ = await served(place, 1)
    session = await place.session()
    await gone(place, to_gateway)
    assert not hasattr(session, "_core")
