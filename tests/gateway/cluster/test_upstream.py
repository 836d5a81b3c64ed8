"""The broker for a client's first connection."""

import asyncio
import socket
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from gateway.cluster import upstream as module
from gateway.cluster.brokers import Brokers
from gateway.cluster.upstream import Upstream
from gateway.config.model import UpstreamConfig


def upstream_of(*ports):
    addresses = [("127.0.0.1", port) for port in ports]
    config = UpstreamConfig(bootstrap_servers=[f"{host}:{port}" for host, port in addresses])
    return Upstream(config, Path(), Brokers(addresses), Counter())


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def silent(stack):
    """The port of a server that does not answer: its queue is full, so the kernel drops connections."""
    server = stack.enter_context(closing(socket.socket()))
    server.bind(("127.0.0.1", 0))
    server.listen(0)
    for _ in range(3):
        client = stack.enter_context(closing(socket.socket()))
        client.setblocking(False)
        client.connect_ex(server.getsockname())
    return server.getsockname()[1]


@pytest.fixture
def listening(stack):
    server = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
    return server.getsockname()[1]


@pytest.fixture
def refusing():
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return server.getsockname()[1]


async def reached(upstream):
    transport = await upstream.dial_anyone(asyncio.Protocol)
    port = transport.get_extra_info("peername")[1]
    transport.close()
    return port


async def test_silent_server_times_out_and_is_tried_last(silent, listening, monkeypatch):
    upstream = upstream_of(silent, listening)
    monkeypatch.setattr(module, "ANYONE_SECONDS", 0.5)
    assert await reached(upstream) == listening
    monkeypatch.setattr(module, "ANYONE_SECONDS", 3600.0)
    assert await reached(upstream) == listening


async def test_first_server_that_has_not_failed_is_used(refusing, listening):
    assert await reached(upstream_of(listening, refusing)) == listening
    assert await reached(upstream_of(refusing, listening)) == listening


async def test_last_slow_server_gets_more_time(silent, monkeypatch):
    monkeypatch.setattr(module, "ANYONE_SECONDS", 0.1)
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.7)
    with pytest.raises(OSError, match=f"127.0.0.1:{silent}: no answer within 0.7 s"):
        await upstream_of(silent).dial_anyone(asyncio.Protocol)


async def test_error_names_each_cause(silent, refusing, monkeypatch):
    monkeypatch.setattr(module, "ANYONE_SECONDS", 0.5)
    with pytest.raises(OSError, match=f"127.0.0.1:{silent}: no answer within 0.5 s; 127.0.0.1:{refusing}: Connect"):
        await upstream_of(silent, refusing).dial_anyone(asyncio.Protocol)


async def test_port_without_tls_is_not_reported_as_silent():
    async def hang_up(reader, writer):
        await reader.read(4096)  # unread bytes would reset the connection, which gives another error
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = UpstreamConfig(bootstrap_servers=[f"127.0.0.1:{port}"], tls={"verify_hostname": False})
    upstream = Upstream(config, Path(), Brokers([("127.0.0.1", port)]), Counter())
    try:
        with pytest.raises(OSError, match=f"127.0.0.1:{port}: it closed the connection in the TLS handshake"):
            await upstream.dial_anyone(asyncio.Protocol)
    finally:
        server.close()
        await server.wait_closed()


async def test_kernel_probes_the_broker_of_an_open_connection(listening):
    upstream = upstream_of(listening)
    ended = await upstream.dial_anyone(asyncio.Protocol)
    ended.close()
    transport = await upstream.dial_anyone(asyncio.Protocol)
    upstream.keep_alive()
    assert transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    transport.close()
