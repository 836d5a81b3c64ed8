"""Clients that close their side: those that still read their answers, and those that are gone."""

import os
import socket
import struct
from contextlib import suppress
from functools import partial

import pytest

from gateway.proxy.in_flight import MAX_IN_FLIGHT
from gateway.proxy.sessions import ANSWER_SECONDS
from gateway.steps import at_once
from loadtest.testkit.certificates import Authority
from tests.gateway.features.topic_quotas.test_produce_inspector import HOT, Metered, produced
from tests.gateway.features.topic_quotas.test_produce_inspector import produce as produce_to
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.test_draining_sockets import Place, begin, leave, make_place, on_uvloop  # noqa: F401 -- a fixture
from tests.gateway.running import until

CROWD = [m.heartbeat(number) for number in range(MAX_IN_FLIGHT + 1)]


def close_side(to_gateway):
    """Without the end of TLS: such a client reads on, and Python's ends both sides of TLS at once."""
    with socket.socket(fileno=os.dup(to_gateway.get_extra_info("socket").fileno())) as same:
        same.shutdown(socket.SHUT_WR)


def reset(to_gateway):
    to_gateway.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    to_gateway.transport.abort()


def pass_seconds(place, seconds):
    """The broker is silent for so long."""
    for session in place.sessions:
        place.sessions.close_idle(session.last_active + seconds)


@on_uvloop
async def test_half_closed_client_gets_all_its_answers(place):
    client, to_gateway, broker, to_client, session = await begin(place, m.heartbeat(1), m.fetch(2), m.produce(3, acks=0))
    close_side(to_gateway)
    await until(lambda: session.draining)
    pass_seconds(place, ANSWER_SECONDS - 1.0)
    large = m.fetched(2, size=2_000_000)
    to_client.write(m.beat(1))
    to_client.write(large)
    assert await client.read() == m.beat(1) + large
    assert await broker.read() == b""
    await place.sessions.wait_empty()


@on_uvloop
async def test_half_closed_client_without_requests_ends(place):
    client, to_gateway, broker, to_client, _ = await begin(place, m.heartbeat(1))
    to_client.write(m.beat(1))
    assert await client.readexactly(len(m.beat(1))) == m.beat(1)
    close_side(to_gateway)
    assert await client.read() == b""
    assert await broker.read() == b""
    await place.sessions.wait_empty()


@on_uvloop
async def test_half_closed_client_is_given_up_after_silence(place):
    client, to_gateway, broker, _, session = await begin(place, m.heartbeat(1))
    close_side(to_gateway)
    await until(lambda: session.draining)
    pass_seconds(place, ANSWER_SECONDS + 1.0)
    assert await client.read() == b""
    assert await broker.read() == b""
    await place.sessions.wait_empty()
    assert not place.counters.rejected


@on_uvloop
async def test_drain_answers_half_closed_client(place):
    client, to_gateway, _, to_client, session = await begin(place, m.heartbeat(1))
    session.drain()
    close_side(to_gateway)
    pass_seconds(place, ANSWER_SECONDS - 1.0)
    to_client.write(m.beat(1))
    assert await client.read() == m.beat(1)
    await place.sessions.wait_empty()


@on_uvloop
async def test_broker_of_half_closed_client_may_be_lost(place):
    client, to_gateway, _, to_client, session = await begin(place, m.heartbeat(1), m.heartbeat(2))
    close_side(to_gateway)
    await until(lambda: session.draining)
    to_client.write(m.beat(1))
    to_client.close()
    assert await client.read() == m.beat(1)
    await place.sessions.wait_empty()


@on_uvloop
async def test_answers_for_topics_count_after_half_close(place):
    quotas = Metered.quotas_of()
    place.inspect_topics(quotas)
    client, to_gateway, broker, to_client, _ = await begin(place, produce_to(1, (HOT, {0: m.batch(100)})))
    close_side(to_gateway)
    to_client.write(produced(1, (HOT, {0: 0})))
    assert await client.read() == produced(1, (HOT, {0: 0}))
    assert await broker.read() == b""
    await place.sessions.wait_empty()
    assert [row.appended_bytes for row in at_once(quotas.rows(0.0)) if row.topic == HOT] == [100]


@pytest.fixture(params=["tcp", "tls", "broker's tls"])
def make_own_place(request, tmp_path):
    """Only Weir's own transports learn of a client's end that they do not read."""
    authority = None if request.param == "tcp" else Authority(tmp_path)
    both = (None, authority) if request.param == "broker's tls" else (authority, None)
    return partial(Place, *both, own=True)


def on_own_transports(scenario):
    def run(make_own_place, caplog):
        on_uvloop(scenario)(make_own_place, caplog)

    return run


@on_own_transports
async def test_muted_client_that_half_closes_gets_its_answer(place):
    over_quota = m.produce(1, size=100_000)
    client, to_gateway, broker, to_client, session = await begin(place, over_quota)
    to_gateway.write(m.produce(2))
    close_side(to_gateway)
    await until(lambda: session in place.sessions._ended)
    to_client.write(m.produced(1))
    assert (await client.readexactly(len(m.produced(1))))[:8] == m.produced(1)[:8]
    pass_seconds(place, ANSWER_SECONDS + 1.0)
    with suppress(ConnectionResetError):  # for the request that is not read
        assert await client.read() == b""
    assert await broker.read() == b""
    await place.sessions.wait_empty()


async def begin_crowd(place, *behind):
    """A client with as many requests in flight as it may have, and requests behind them that the gateway holds."""
    client, to_gateway = await place.client()
    to_gateway.write(b"".join([*CROWD, *behind]))
    broker, to_client = await place.broker()
    assert await broker.readexactly(len(b"".join(CROWD))) == b"".join(CROWD)
    return client, to_gateway, broker, to_client, await place.session()


@pytest.mark.parametrize("end", [close_side, reset])
def test_crowded_client_that_ends_is_given_up(make_own_place, caplog, end):
    async def scenario(place):
        _, to_gateway, broker, _, session = await begin_crowd(place, m.produce(5_000))
        end(to_gateway)
        await until(lambda: session in place.sessions._ended)
        pass_seconds(place, ANSWER_SECONDS - 1.0)
        assert not session.closing
        pass_seconds(place, ANSWER_SECONDS + 1.0)
        assert await broker.read() == b""
        await place.sessions.wait_empty()

    on_uvloop(scenario)(make_own_place, caplog)


@on_own_transports
async def test_crowded_client_that_half_closes_is_answered(place):
    behind = [m.heartbeat(number) for number in range(2_000, 2_100)]
    client, to_gateway, broker, to_client, _ = await begin_crowd(place, *behind)
    close_side(to_gateway)
    first = b"".join(m.beat(number) for number in range(len(CROWD)))
    to_client.write(first)
    assert await broker.readexactly(len(b"".join(behind))) == b"".join(behind)
    rest = b"".join(m.beat(number) for number in range(2_000, 2_100))
    to_client.write(rest)
    assert await client.read() == first + rest
    await place.sessions.wait_empty()


@on_own_transports
async def test_requests_without_acks_are_not_given_up(place):
    """They wait behind a crowd, and their client takes them for done."""
    behind = m.produce(5_000, acks=0)
    _, to_gateway, broker, to_client, session = await begin_crowd(place, behind)
    close_side(to_gateway)
    await until(lambda: session in place.sessions._ended)
    pass_seconds(place, ANSWER_SECONDS + 1.0)
    assert not session.closing
    to_client.write(b"".join(m.beat(number) for number in range(MAX_IN_FLIGHT + 1)))
    assert await broker.readexactly(len(behind)) == behind
