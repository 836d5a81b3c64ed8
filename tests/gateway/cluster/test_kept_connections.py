"""Connections to brokers that wait for another client."""

import asyncio
import socket
from contextlib import closing

import pytest

from gateway.cluster.kept_connections import KEPT_SECONDS, MAX_KEPT, STORM, KeptConnections
from gateway.proxy.counters import Counters
from gateway.proxy.poller import Poller
from gateway.proxy.socket_transport import dial
from tests.gateway.running import until

HOST = "127.0.0.1"
START = 1_000.0


class Client(asyncio.Protocol):
    """The session of a client."""

    def __init__(self):
        self.transport = None
        self.received = asyncio.get_running_loop().create_future()
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received.set_result(data)

    def connection_lost(self, exc):
        self.lost.set_result(exc)


class Broker:
    """A server, and the connections of a gateway with it."""

    def __init__(self):
        self.counters = Counters()
        self.kept = KeptConnections(self.counters)
        self._server = socket.create_server((HOST, 0))
        self._poller = Poller()
        self.peer = (*self._server.getsockname(), "")

    async def close(self):
        self.kept.close()
        await asyncio.sleep(0)
        self._poller.close()
        self._server.close()

    def connection(self):
        """A new connection: its transport, and the broker's end."""
        transport = dial(self._poller, self.peer[:2], Client())
        return transport, self._server.accept()[0]

    def storm(self, count=STORM, peer=None):
        """So many clients connect within a second."""
        for _ in range(count):
            assert self.kept.take(peer or self.peer, Client()) is None
        self.kept.tick(START)


@pytest.fixture
async def broker():
    broker = Broker()
    yield broker
    await broker.close()


async def test_next_client_gets_a_kept_connection(broker):
    transport, end = broker.connection()
    with closing(end):
        broker.storm()
        assert broker.kept.keep(transport, START)
        client = Client()
        assert broker.kept.take(broker.peer, client) is transport
        assert client.transport is transport
        transport.write(b"request")
        assert end.recv(100) == b"request"
        end.send(b"answer")
        assert await client.received == b"answer"
        assert broker.counters.connections_reused == 1
        assert broker.kept.take(broker.peer, Client()) is None, "it has a client"
        transport.abort()
        await client.lost


async def test_paused_connection_is_read_again(broker):
    transport, end = broker.connection()
    with closing(end):
        transport.pause_reading()
        broker.storm()
        broker.kept.keep(transport, START)
        client = Client()
        broker.kept.take(broker.peer, client)
        end.send(b"answer")
        assert await client.received == b"answer"
        transport.abort()
        await client.lost


@pytest.fixture
async def waiting(broker):
    """A connection that waits for another client, and the broker's end."""
    transport, end = broker.connection()
    with closing(end):
        broker.storm()
        assert broker.kept.keep(transport, START)
        yield transport, end


@pytest.mark.parametrize("count", [0, STORM - 1])
async def test_connection_of_few_clients_is_not_kept(broker, count):
    transport, end = broker.connection()
    with closing(end):
        broker.storm(count)
        assert not broker.kept.keep(transport, START)
        transport.abort()


async def test_storm_of_another_broker_does_not_count(broker):
    transport, end = broker.connection()
    with closing(end):
        broker.storm(peer=(HOST, 1, ""))
        assert not broker.kept.keep(transport, START)
        transport.abort()


async def test_storm_begins_with_its_last_client(broker):
    transport, end = broker.connection()
    with closing(end):
        for _ in range(STORM):
            assert not broker.kept.keep(transport, START)
            broker.kept.take(broker.peer, Client())
        assert broker.kept.keep(transport, START)


async def test_storm_ends_after_a_second_without_it(broker):
    transport, end = broker.connection()
    with closing(end):
        broker.storm()
        broker.kept.tick(START + 1)
        assert not broker.kept.keep(transport, START + 1)
        transport.abort()


@pytest.mark.usefixtures("waiting")
async def test_connection_belongs_to_the_name_of_its_certificate(broker):
    assert broker.kept.take((*broker.peer[:2], "broker.example"), Client()) is None


async def test_connection_that_nobody_needs_is_closed(broker, waiting):
    transport, _ = waiting
    broker.kept.tick(START + KEPT_SECONDS / 2)
    assert not transport.is_closing()
    broker.kept.tick(START + KEPT_SECONDS)
    assert transport.is_closing()


async def test_connection_that_the_broker_has_closed_is_not_given(broker, waiting):
    transport, end = waiting
    end.close()  # in this turn of the event loop, nobody has seen it yet
    assert broker.kept.take(broker.peer, Client()) is None
    assert transport.is_closing()


async def test_connection_with_unasked_bytes_is_not_given(broker, waiting):
    transport, end = waiting
    end.send(b"answer")
    await until(transport.is_closing)
    assert broker.kept.take(broker.peer, Client()) is None


async def test_closing_connection_is_not_kept(broker):
    transport, end = broker.connection()
    with closing(end):
        broker.storm()
        transport.abort()
        assert not broker.kept.keep(transport, START)


async def test_number_of_kept_connections_is_bounded(broker):
    broker.storm()
    connections = [broker.connection() for _ in range(MAX_KEPT + 1)]
    assert [broker.kept.keep(transport, START) for transport, _ in connections] == [True] * MAX_KEPT + [False]
    for transport, end in connections:
        transport.abort()
        end.close()


async def test_end_of_the_gateway_closes_kept_connections(broker, waiting):
    transport, _ = waiting
    broker.kept.close()
    assert transport.is_closing()
    other, other_end = broker.connection()
    with closing(other_end):
        assert not broker.kept.keep(other, START)
        other.abort()
