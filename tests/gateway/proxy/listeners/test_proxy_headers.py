"""Connections that begin with a PROXY header: headers, limits on addresses, and the way from the header to the session."""

import asyncio
import socket
import ssl
from ipaddress import IPv4Address, ip_address

import pytest

from gateway.config.proxy_protocol import ProxyProtocolConfig
from gateway.proxy.counters import Counters
from gateway.proxy.listeners import proxy_headers as module
from gateway.proxy.tls.contexts import LiveContext, ServerTls, server_context
from gateway.proxy.tls.handshakes import Handshakes
from gateway.quotas.meter import Window
from loadtest.testkit.certificates import LOOPBACK
from tests.gateway.proxy.listeners.house import ask
from tests.gateway.running import until
from tests.protocol.proxy_headers import IPV4, LOCAL, SIGNATURE, UNIX, binary, line

NEVER = 600.0
BALANCER, STRANGER = "127.0.0.1", "127.0.0.2"
ALICE, BOB = "192.0.2.7", "192.0.2.8"
HEADERS = {1: lambda ip: line(f"TCP4 {ip} 10.0.0.9 5555 9092"), 2: lambda ip: binary(IPv4Address(ip), IPV4, 5555, 9092)}


def settings(mode="required", seconds=NEVER):
    return ProxyProtocolConfig(mode=mode, trusted=[f"{BALANCER}/32"], header_seconds=seconds)


async def receive(client, count=1):
    """Return that many bytes from the gateway, or fewer from a closed connection."""
    received = b""
    try:
        while len(received) < count and (data := await asyncio.get_running_loop().sock_recv(client, count - len(received))):
            received += data
    except ConnectionError:
        pass
    return received


async def announced(here, ip):
    """A connection that the balancer has opened for a client."""
    client = await here.connect()
    client.send(HEADERS[2](ip))
    return client


async def starting(here, count):
    await until(lambda: here.acceptor.starting == count)


@pytest.mark.parametrize("mode", ["required", "allowed"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("by", [1, 7, 1_000])
async def test_session_gets_client_and_bytes_behind_header(house, mode, version, by):
    here = house(proxy=settings(mode))
    client = await here.connect()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sent = HEADERS[version](ALICE) + b"hello"
    for begin in range(0, len(sent), by):
        client.send(sent[begin : begin + by])
        await asyncio.sleep(0)
    assert await receive(client, 5) == b"hello"
    assert [echo.client for echo in here.made] == [(ALICE, 5555)]
    assert here.counters.proxy_headers == {f"v{version}": 1}
    assert here.counters.rejected == {}


async def test_silence_after_header_is_no_error(house):
    here = house(proxy=settings(seconds=1.0))
    client = await announced(here, ALICE)
    await starting(here, 0)
    await until(lambda: here.made)
    await asyncio.sleep(1.1)  # wait, because nothing must happen
    assert await ask(client) == b"hello"


async def test_second_header_belongs_to_the_session(house):
    here = house(proxy=settings())
    client = await announced(here, ALICE)
    again = HEADERS[1](BOB)
    assert await ask(client, again) == again
    assert here.made[0].client == (ALICE, 5555)


@pytest.mark.parametrize("source", [BALANCER, STRANGER])
async def test_header_is_optional_where_allowed(house, source):
    here = house(proxy=settings("allowed"))
    client = await here.connect(source)
    assert await ask(client, b"\0\0\0\x04pong") == b"\0\0\0\x04pong"
    assert here.made[0].client == client.getsockname()
    assert here.counters.proxy_headers == {"none": 1}


@pytest.mark.parametrize("source", [BALANCER, STRANGER])
async def test_silent_client_is_served_where_allowed(house, source):
    here = house(proxy=settings("allowed", seconds=0.02))
    client = await here.connect(source)
    await until(lambda: here.made)
    assert await ask(client) == b"hello"


@pytest.mark.parametrize("mode", ["required", "allowed"])
@pytest.mark.parametrize("version", [1, 2])
async def test_header_from_a_stranger_is_refused(house, caplog, mode, version):
    here = house(proxy=settings(mode))
    client = await here.connect(STRANGER)
    assert await ask(client, HEADERS[version](ALICE)) == b""
    assert (here.made, here.counters.rejected) == ([], {"proxy_header_untrusted": 1})
    assert here.quotas.count(STRANGER) == here.quotas.count(ALICE) == 0
    (record,) = caplog.records
    assert "listeners[clients].proxy_protocol.trusted does not have" in record.message
    assert record.peer == "{}:{}".format(*client.getsockname())


async def test_stranger_is_refused_unread_where_required(house):
    here = house(proxy=settings())
    client = await here.connect(STRANGER)
    assert await receive(client) == b""
    assert here.counters.rejected == {"proxy_header_untrusted": 1}


BAD = {
    "a request": (b"\0\0\0\x14\0\x12\0\x03", "missing", "send-proxy-v2"),
    "TLS": (b"\x16\x03\x01\0\xf8", "missing", "mode to allowed"),
    "an endless line": (b"PROXY UNKNOWN " + b"x" * 100_000, "invalid", "no CRLF within 107 bytes"),
    "64 KiB": (SIGNATURE + b"\x21\x11\xff\xff", "invalid", "announces 65551 bytes"),
    "addresses cut": (SIGNATURE + b"\x21\x11\0\x04abcd", "invalid", "the addresses of family 1 take 12"),
    "a number of addresses": (line("TCP4 192.0.2.7"), "invalid", "two addresses and two ports"),
}


@pytest.mark.parametrize(("sent", "reason", "words"), BAD.values(), ids=BAD)
async def test_bad_header_is_refused_with_a_remedy(house, caplog, sent, reason, words):
    here = house(proxy=settings())
    client = await here.connect()
    assert await ask(client, sent) == b""
    assert (here.made, here.counters.rejected) == ([], {f"proxy_header_{reason}": 1})
    (record,) = caplog.records
    assert words in record.message
    assert record.reason == f"proxy_header_{reason}", "by which the log thins it out"


@pytest.mark.parametrize("mode", ["required", "allowed"])
async def test_end_inside_a_header_is_refused(house, mode):
    here = house(proxy=settings(mode))
    client = await here.connect()
    client.send(HEADERS[2](ALICE)[:-1])
    client.shutdown(socket.SHUT_WR)
    assert await receive(client) == b""
    assert here.counters.rejected == {"proxy_header_invalid": 1}


async def test_close_without_a_byte_is_not_counted(house, caplog):
    here = house(proxy=settings())
    with await here.connect() as check:
        check.shutdown(socket.SHUT_WR)
        assert await receive(check) == b""
    assert (here.counters.rejected, caplog.records, here.acceptor.starting) == ({}, [], 0)


@pytest.mark.parametrize("mode", ["required", "allowed"])
async def test_half_header_is_cut_at_the_time_limit(house, mode):
    here = house(proxy=settings(mode, seconds=0.05))
    client = await here.connect()
    client.send(HEADERS[1](ALICE)[:-1])
    assert await receive(client) == b""
    assert (here.made, here.counters.rejected) == ([], {"proxy_header_timeout": 1})


@pytest.mark.parametrize("sent", [slice(0, 0), slice(-1)], ids=["nothing", "half a header"])
@pytest.mark.parametrize("mode", ["required", "allowed"])
async def test_connections_without_a_header_do_not_hinder_others(house, monkeypatch, mode, sent):
    monkeypatch.setattr(module, "MAX_PENDING", 100)
    here = house(proxy=settings(mode))
    halves = []
    for number in range(100):
        halves.append(await here.connect())
        halves[-1].send(HEADERS[1 + number % 2](ALICE)[sent])
    await starting(here, 100)
    assert await ask(await announced(here, BOB)) == b"hello"
    assert await receive(halves[0]) == b"", "the oldest is cut for the new one"
    assert here.counters.rejected == {"proxy_header_timeout": 1}
    halves[99].send(HEADERS[2](ALICE)[len(HEADERS[2](ALICE)[sent]) :])
    assert await ask(halves[99]) == b"hello"


async def test_address_limits_hold_for_the_client(house):
    here = house(proxy=settings(), max_per_ip=1)
    first = await announced(here, ALICE)
    assert await ask(first) == b"hello"
    assert await ask(await announced(here, ALICE)) == b""
    assert await ask(await announced(here, BOB)) == b"hello"
    assert here.counters.rejected == {"max_per_ip": 1}
    left = here.left()
    first.close()
    await left.wait()
    assert await ask(await announced(here, ALICE)) == b"hello"


async def test_address_rates_hold_for_the_client(house):
    here = house(proxy=settings(), ip_rate=1 / 600, window=Window(2, 600.0))
    assert await ask(await announced(here, ALICE)) == b"hello"
    await announced(here, ALICE)
    await until(lambda: here.admission.held)
    assert await ask(await announced(here, BOB)) == b"hello"
    assert here.counters.rejected == {"connection_creation_rate": 1}


@pytest.mark.parametrize("header", [LOCAL, line("UNKNOWN"), SIGNATURE + b"\x21\x31\0\xd8" + UNIX], ids=["local", "v1", "unix"])
async def test_balancer_itself_has_no_address_limits(house, header):
    here = house(proxy=settings(), max_per_ip=1, ip_rate=1)
    for _ in range(3):
        client = await here.connect()
        client.send(header)
        assert await ask(client) == b"hello"
        assert here.made[-1].client == client.getsockname()
    assert here.quotas.count(BALANCER) == 3


async def test_introduced_connections_wait_for_a_place(house):
    here = house(proxy=settings(), max_connections=1)
    clients = [await here.connect() for _ in range(3)]
    await starting(here, 3)
    for client in clients:
        client.send(HEADERS[2](ALICE) + b"hello")
    assert await receive(clients[0], 5) == b"hello"
    assert (len(here.made), here.acceptor.starting) == (1, 2)
    late = await here.connect()  # in the kernel's queue, behind those that are introduced
    late.send(HEADERS[2](BOB) + b"hello")
    for before, client in zip(clients, [*clients[1:], late], strict=True):
        before.close()
        assert await receive(client, 5) == b"hello"
    assert here.made[-1].client == (BOB, 5555)


async def test_introduced_connections_over_listener_rate_are_served(house):
    here = house(start=False, proxy=settings(), connection_creation_rate=20, window=Window(2, 0.1))
    clients = [await announced(here, ALICE) for _ in range(10)]
    here.acceptor.start()
    assert [await ask(client) for client in clients] == [b"hello"] * 10
    assert here.quotas.listeners["clients"].throttle_seconds_total > 0
    assert here.counters.rejected == {}


async def test_headers_and_introduced_connections_survive_finish(house):
    here = house(proxy=settings(), max_connections=2)
    clients = [await here.connect() for _ in range(4)]
    await starting(here, 4)
    for client in clients[:3]:
        client.send(HEADERS[1](ALICE) + b"hello")
    assert [await receive(client, 5) for client in clients[:2]] == [b"hello"] * 2
    here.acceptor.finish()
    assert here.acceptor.starting == 2
    clients[0].close()
    assert await receive(clients[2], 5) == b"hello"
    clients[1].close()
    clients[3].send(HEADERS[1](BOB) + b"hello")
    assert await receive(clients[3], 5) == b"hello"
    assert here.acceptor.starting == 0


async def test_close_ends_headers_and_introduced_connections(house):
    here = house(proxy=settings(), max_connections=1)
    clients = [await here.connect() for _ in range(3)]
    await starting(here, 3)
    for client in clients[:2]:
        client.send(HEADERS[1](ALICE) + b"hello")
    assert await receive(clients[0], 5) == b"hello"
    here.acceptor.close()
    assert [await receive(client) for client in clients[1:]] == [b"", b""]
    await starting(here, 0)
    assert await ask(clients[0]) == b"hello"


@pytest.fixture
def handshakes(authority):
    files = authority.issue("server", LOOPBACK)
    tls = ServerTls(files.cert, files.key, None, "none", "1.2")
    return Handshakes("clients", LiveContext("tls", tls, lambda: server_context(tls), {}), NEVER, Counters())


@pytest.mark.parametrize("version", [1, 2])
async def test_tls_begins_behind_header_in_one_segment(house, handshakes, authority, version):
    here = house(proxy=settings(), tls=handshakes)
    client = await here.connect()
    client.send(HEADERS[version](ALICE), socket.MSG_MORE)  # the kernel sends it with the ClientHello
    trusting = ssl.create_default_context(cafile=authority.cert)
    reader, writer = await asyncio.open_connection(sock=client, ssl=trusting, server_hostname="localhost")
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    assert here.made[0].client == (ALICE, 5555)
    writer.transport.abort()


async def test_failed_handshake_names_the_client(house, handshakes, caplog):
    here = house(proxy=settings(), tls=handshakes)
    client = await announced(here, ALICE)
    await ask(client, b"this is no ClientHello")
    await starting(here, 0)
    assert [record.peer for record in caplog.records] == [f"{ALICE}:5555"]


def test_balancers_are_trusted_by_address_or_network():
    config = ProxyProtocolConfig(mode="allowed", trusted=["10.0.0.9", "192.0.2.0/28", "2001:db8::/64"])
    headers = module.ProxyHeaders("clients", config, Counters(), None)
    trusted = ["10.0.0.9", "192.0.2.0", "192.0.2.15", "2001:db8::1"]
    others = ["10.0.0.10", "192.0.2.16", "2001:db8:0:1::", "fe80::1%eth0", "::ffff:10.0.0.9"]
    assert [ip for ip in trusted + others if headers.trusts((str(ip_address(ip)), 1))] == trusted
