"""Names with several IP addresses, of which some drop packets or refuse."""

import asyncio
import inspect
import socket
import ssl
import struct
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest
import uvloop

from gateway.cluster import any_address
from gateway.cluster.brokers import Brokers
from gateway.cluster.client import ClusterError, Connections
from gateway.cluster.discovery import sasl_mechanisms
from gateway.cluster.upstream import Upstream
from gateway.config.model import UpstreamConfig
from gateway.proxy.counters import Counters
from gateway.proxy.poller import Poller
from loadtest.testkit.certificates import Authority

NAME = "kafka.test"
SILENT, OTHER = "127.0.0.1", "127.0.0.2"

VERSIONS = struct.pack(">ihihhh", 1, 0, 1, 18, 0, 0)
"""The answer to the first ApiVersions: its correlation id, no error, and one API."""


def in_each_loop(test):
    """Run the test in asyncio's own event loop, as commands that ask brokers do, and in uvloop's."""

    def run(new_loop, **fixtures):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(test(**fixtures))

    own = inspect.signature(test)
    first = inspect.Parameter("new_loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = own.replace(parameters=[first, *own.parameters.values()])
    run.__name__ = test.__name__
    return pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])(run)


@pytest.fixture
def resolve(monkeypatch):
    """Sets the addresses of the name."""

    def set_addresses(*addresses):
        async def found(host, port, **_options):
            assert host == NAME
            return [(socket.AF_INET, kind, 6, "", (ip, port)) for ip in addresses for kind in (socket.SOCK_STREAM,) * 2]

        loop = asyncio.get_running_loop()
        real = loop.getaddrinfo
        monkeypatch.setattr(
            loop,
            "getaddrinfo",
            lambda host, *args, **options: found(host, *args, **options) if host == NAME else real(host, *args, **options),
        )

    return set_addresses


def upstream_of(port, poller=None, tls=None, directory=Path()):
    config = UpstreamConfig(bootstrap_servers=[f"{NAME}:{port}"], tls=tls)
    return Upstream(config, directory, Brokers([(NAME, port)]), Counters(), poller)


def peer_of(transport):
    return transport.get_extra_info("socket").getpeername()[0]


@in_each_loop
async def test_silent_address_leaves_time_to_the_next(silent, resolve, stack):
    stack.enter_context(closing(socket.create_server((OTHER, silent))))
    resolve(SILENT, OTHER)
    poller = stack.enter_context(closing(Poller()))
    upstream = upstream_of(silent, poller)
    transport = await upstream.dial_anyone(asyncio.Protocol)
    at_once = upstream.dial_anyone_at_once(asyncio.Protocol())
    assert [peer_of(each) for each in (transport, at_once)] == [OTHER] * 2, "the next client goes there at once"
    assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    for each in (transport, at_once):
        each.abort()
    await asyncio.sleep(0)


@in_each_loop
async def test_client_reaches_a_broker_at_its_second_address(silent, resolve, stack):
    stack.enter_context(closing(socket.create_server((OTHER, silent))))
    resolve(SILENT, OTHER)
    upstream = upstream_of(silent)
    upstream.brokers.learn(1, NAME, silent)
    transport = await upstream.dial_broker(1, asyncio.Protocol)
    assert peer_of(transport) == OTHER
    transport.abort()


@in_each_loop
async def test_silent_last_address_ends_with_the_time_limit(silent, resolve, monkeypatch):
    monkeypatch.setattr("gateway.cluster.upstream.CONNECT_SECONDS", 0.7)
    resolve(OTHER, SILENT)
    with pytest.raises(OSError, match=f"{NAME}:{silent}: no answer within 0.7 s"):
        await upstream_of(silent).dial_anyone(asyncio.Protocol)


@in_each_loop
async def test_error_has_the_reason_of_each_address(resolve):
    with closing(socket.create_server((OTHER, 0))) as server:
        port = server.getsockname()[1]
    resolve(SILENT, OTHER)
    with pytest.raises(OSError, match=rf"Connect call failed .*{SILENT}.*; Connect call failed .*{OTHER}"):
        await upstream_of(port).dial_anyone(asyncio.Protocol)


@asynccontextmanager
async def broker(port, answer=VERSIONS, context=None):
    """A broker at the second address with this answer to the first request. Waits for its connection's end."""
    ended = asyncio.Event()

    async def serve(reader, writer):
        with suppress(OSError, EOFError):
            await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            writer.write(struct.pack(">i", len(answer)) + answer)
            await reader.read()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(serve, OTHER, port, ssl=context):
        yield
        await ended.wait()


@pytest.fixture
def files(tmp_path):
    authority = Authority(tmp_path)
    return authority, authority.issue("broker", [NAME])


def server_context(files):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    return context


@pytest.mark.parametrize("addresses", [(SILENT, OTHER), (OTHER,)])
@pytest.mark.parametrize("encrypted", [False, True])
@in_each_loop
async def test_own_connection_reaches_the_second_address(silent, resolve, files, addresses, encrypted):
    authority, of_broker = files
    resolve(*addresses)
    trust = ssl.create_default_context(cafile=authority.cert)
    options = {"security_protocol": "SSL", "ssl_context": trust} if encrypted else {}
    context = server_context(of_broker) if encrypted else None
    async with broker(silent, context=context):
        connections = Connections(lambda: options)
        connection = await connections._connection((NAME, silent))
        assert connection.host == NAME, "SASL needs the name"
        assert peer_of(connection._writer.transport) == OTHER
        await connections.close()
        await connection._closed_fut


@in_each_loop
async def test_own_connection_refuses_another_names_certificate(silent, resolve, tmp_path):
    authority = Authority(tmp_path)
    resolve(SILENT, OTHER)
    trust = ssl.create_default_context(cafile=authority.cert)
    context = server_context(authority.issue("broker", [OTHER, "other.test"]))
    async with await asyncio.get_running_loop().create_server(asyncio.Protocol, OTHER, silent, ssl=context):
        connections = Connections(lambda: {"security_protocol": "SSL", "ssl_context": trust})
        with pytest.raises(ClusterError, match="Hostname mismatch"):
            await connections.ask((NAME, silent), object())
        await connections.close()


@in_each_loop
async def test_client_over_tls_reaches_the_second_address(silent, resolve, files, tmp_path):
    authority, of_broker = files
    resolve(SILENT, OTHER)
    async with broker(silent, context=server_context(of_broker)):
        upstream = upstream_of(silent, tls={"ca": authority.cert.name}, directory=tmp_path)
        reader = asyncio.StreamReader()
        transport = await upstream.dial_anyone(lambda: asyncio.StreamReaderProtocol(reader))
        assert peer_of(transport) == OTHER
        transport.write(struct.pack(">i", 0))
        assert VERSIONS in await reader.readexactly(4 + len(VERSIONS))
        transport.abort()


@in_each_loop
async def test_question_for_sasl_reaches_the_second_address(silent, resolve):
    resolve(SILENT, OTHER)
    async with broker(silent, struct.pack(">ihih5s", 0, 33, 1, 5, b"PLAIN")):
        assert await sasl_mechanisms((NAME, silent)) == ("PLAIN",)


@in_each_loop
async def test_address_that_accepts_later_is_given_up(resolve, stack, monkeypatch):
    monkeypatch.setattr(any_address, "NEXT_ADDRESS_SECONDS", 0.0)
    servers = [stack.enter_context(closing(socket.create_server((SILENT, 0))))]
    port = servers[0].getsockname()[1]
    servers.append(stack.enter_context(closing(socket.create_server((OTHER, port)))))
    resolve(SILENT, OTHER)
    both, connected = asyncio.Barrier(2), any_address._connected

    async def at_once(address):
        """Connect. No attempt ends before both are connected: otherwise nothing would be left to give up."""
        connection = await connected(address)
        await both.wait()
        return connection

    monkeypatch.setattr(any_address, "_connected", at_once)
    transport = await upstream_of(port).dial_anyone(asyncio.Protocol)
    given_up = servers[peer_of(transport) == SILENT].accept()[0]
    reader, writer = await asyncio.open_connection(sock=given_up)
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    transport.abort()
