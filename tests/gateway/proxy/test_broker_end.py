"""A session whose first attempt to reach its broker takes long, or fails."""

import socket
from contextlib import ExitStack, asynccontextmanager, closing

import pytest

from loadtest.testkit.certificates import Authority
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.test_draining_sockets import Place, leave, on_uvloop
from tests.gateway.running import until


@pytest.fixture(params=["TCP", "TLS over TCP", "TLS"])
def make_place(request, tmp_path):
    """A place whose first address does not answer, to TCP or to the TLS handshake that follows."""
    with ExitStack() as stack:
        server = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0), backlog=0)))
        if request.param != "TLS":  # the queue is full, so the kernel drops connections
            stack.enter_context(closing(socket.create_connection(server.getsockname())))

        def make():
            place = Place(None, None if request.param == "TCP" else Authority(tmp_path), own=True)
            place.first_address = server.getsockname()
            return place

        yield make


@asynccontextmanager
async def connecting(place, frame):
    """The client's ends of a session that has begun to connect for a request."""
    client, to_gateway = await place.client()
    to_gateway.write(frame)
    await until(lambda: place.attempts)
    assert place.attempts[0].connecting
    yield client, to_gateway
    await leave(place, to_gateway, lambda: not len(place.sessions))


@on_uvloop
async def test_other_addresses_follow_failed_attempt(place):
    async with connecting(place, m.produce(1)) as (client, _):
        place.attempts[0].fail(TimeoutError())
        broker, to_client = await place.broker()
        assert await broker.readexactly(len(m.produce(1))) == m.produce(1)
        to_client.write(m.produced(1))
        assert await client.readexactly(len(m.produced(1))) == m.produced(1)


@on_uvloop
async def test_client_is_not_read_while_its_session_connects(place):
    async with connecting(place, m.produce(1)) as (_, to_gateway):
        to_gateway.write(m.produce(2))
        session = await place.session()
        await until(lambda: session.unread_client_bytes() == len(m.produce(2)))
        place.attempts[0].fail(TimeoutError())
        broker, _ = await place.broker()
        assert await broker.readexactly(len(m.produce(1) + m.produce(2))) == m.produce(1) + m.produce(2)


@on_uvloop
async def test_attempt_ends_with_its_client(place):
    async with connecting(place, m.produce(1)):
        session = await place.session()
        place.sessions.close_idle(session.last_active + 1_000)
        await until(lambda: place.attempts[0].is_closing())
        await until(lambda: not hasattr(session, "_core"))
    assert place._brokers.empty()


@on_uvloop
async def test_dial_that_is_cancelled_at_once_lets_go_of_core(place):
    async with connecting(place, m.produce(1)):
        session = await place.session()
        place.attempts[0].fail(TimeoutError())
        session.abort()
        await until(lambda: not hasattr(session, "_core"))


@on_uvloop
async def test_bytes_without_acks_survive_client_and_attempt(place):
    async with connecting(place, m.produce(1, acks=0)):
        session = await place.session()
        place.sessions.close_idle(session.last_active + 1_000)
        await until(lambda: session._client is None)
        assert len(place.sessions) == 1
        place.attempts[0].fail(TimeoutError())
        broker, _ = await place.broker()
        assert await broker.read() == m.produce(1, acks=0)
        await place.sessions.wait_empty()
        await until(lambda: not hasattr(session, "_core"))


@on_uvloop
async def test_failure_of_every_address_closes_client(place):
    async with connecting(place, m.produce(1)) as (client, _):
        place.dial_error = OSError("no broker")
        place.attempts[0].fail(TimeoutError())
        assert await client.read() == b""
