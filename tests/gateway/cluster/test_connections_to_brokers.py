"""Weir's own connections to brokers."""

import asyncio
import gc
import ssl
import struct
import weakref

import pytest
from aiokafka.errors import KafkaError

from gateway.cluster.client import ClusterError, Connections
from gateway.cluster.requests import describe_topics
from loadtest.testkit.certificates import Authority
from tests.gateway.running import until
from tests.hostile.stub_broker import StubBroker

REQUEST = object()
"""A request of aiokafka's: its answer is not read."""


class ClosedTransport:
    """A connection with a closed transport, on which uvloop raises an error that is not Kafka's."""

    def connected(self):
        return True

    def send(self, request):
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    def close(self):
        pass


async def test_closed_connection_raises_a_cluster_error():
    connections = Connections()
    connections._open["127.0.0.1", 9] = ClosedTransport()
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:9: unable to perform operation") as caught:
        await connections.ask(("127.0.0.1", 9), describe_topics([]))
    assert not isinstance(caught.value, KafkaError)
    assert not connections._open


async def test_read_from_any_broker_fails_on_two_connections(monkeypatch):
    """The first of them may be one that a broker has closed, so only the second one shows that the broker is unreachable."""
    opened = []

    async def connect(*_address, **_options):
        opened.append(ClosedTransport())
        return opened[-1]

    monkeypatch.setattr("gateway.cluster.client.create_conn", connect)
    connections = Connections()
    connections._open["127.0.0.1", 9] = ClosedTransport()
    with pytest.raises(ClusterError):
        await connections.read_any([("127.0.0.1", 9)], REQUEST)
    assert len(opened) == 1
    with pytest.raises(ClusterError):
        await connections.read_any([("127.0.0.1", 9)], REQUEST)
    assert len(opened) == 2


async def test_idle_connection_is_closed_and_forgotten(monkeypatch):
    """Its broker may have vanished without a word, and would keep the descriptor."""
    monkeypatch.setattr("gateway.cluster.client.IDLE_MS", 1)
    with StubBroker() as broker:
        connections = Connections()
        await connections.ask(("127.0.0.1", broker.port), describe_topics([]))
        await until(lambda: not connections._open)
        await connections.ask(("127.0.0.1", broker.port), describe_topics([]))
        await connections.close()


async def test_lost_request_is_not_repeated(monkeypatch):
    """A broker may have executed it before the connection ended."""
    monkeypatch.setattr("gateway.cluster.client.create_conn", None)
    connections = Connections()
    connections._open["127.0.0.1", 9] = ClosedTransport()
    with pytest.raises(ClusterError, match="unable to perform operation"):
        await connections.ask_any([("127.0.0.1", 9)], REQUEST)


class Breaking:
    """A connection that is lost at once, while a request on it fails a moment later."""

    def __init__(self):
        self.failed = asyncio.Event()

    def connected(self):
        return False

    async def send(self, request):
        await self.failed.wait()
        raise OSError("connection reset")

    def close(self):
        pass


class Answering(Breaking):
    """A connection that answers."""

    def connected(self):
        return True

    async def send(self, request):
        return "answer"


async def test_failed_request_leaves_the_newer_connection_alone(monkeypatch):
    old, reachable, opened = Breaking(), asyncio.Event(), []

    async def connect(*_address, **_options):
        await reachable.wait()
        opened.append(Answering())
        return opened[-1]

    async def connect_at_once(*_address, **_options):
        return old

    monkeypatch.setattr("gateway.cluster.client.create_conn", connect_at_once)
    connections, address = Connections(), ("127.0.0.1", 9)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(_error_of(connections.ask(address, REQUEST)))
        await turns()
        monkeypatch.setattr("gateway.cluster.client.create_conn", connect)
        second = tasks.create_task(connections.ask(address, REQUEST))
        await turns()
        old.failed.set()
        await first
        third = tasks.create_task(connections.ask(address, REQUEST))
        await turns()
        reachable.set()
    assert "connection reset" in first.result()
    assert second.result() == third.result() == "answer"
    assert list(connections._open.values()) == opened
    assert len(opened) == 1


async def test_close_waits_for_the_end_of_tls_after_a_failed_login(tmp_path):
    authority = Authority(tmp_path)
    files = authority.issue("broker", ["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    ended = asyncio.Event()

    async def answer_another_request(reader, writer):
        await reader.read(1)
        writer.write(struct.pack(">ii", 4, -1))
        await reader.read()
        ended.set()
        writer.close()

    async with await asyncio.start_server(answer_another_request, "127.0.0.1", 0, ssl=context) as server:
        trust = ssl.create_default_context(cafile=authority.cert)
        connections = Connections(lambda: {"security_protocol": "SSL", "ssl_context": trust})
        with pytest.raises(ClusterError):
            await connections.ask(server.sockets[0].getsockname(), REQUEST)
        assert not ended.is_set()
        await connections.close()
        assert ended.is_set()


async def _error_of(asking):
    with pytest.raises(ClusterError) as caught:
        await asking
    return str(caught.value)


async def turns():
    """Let each task run until it waits for an event."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_sent_request_is_freed_without_the_garbage_collector():
    gc.disable()
    try:
        prepared = describe_topics(["a"]).prepare({3: (0, 12)})
        assert prepared.RESPONSE_TYPE is prepared
        freed = weakref.ref(prepared)
        del prepared
        assert freed() is None
    finally:
        gc.enable()
