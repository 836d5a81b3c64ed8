"""The broker for a client's first connection."""

import asyncio
import itertools
import socket
from contextlib import closing
from pathlib import Path

import pytest

from gateway import clock
from gateway.cluster import upstream as module
from gateway.cluster.brokers import Brokers
from gateway.cluster.upstream import Upstream
from gateway.config.model import UpstreamConfig
from gateway.proxy.counters import Counters
from gateway.proxy.poller import Poller
from loadtest.testkit.kafka import free_port
from protocol.errors import OtherCluster


def upstream_of(*ports, host="127.0.0.1", poller=None):
    addresses = [(host, port) for port in ports]
    config = UpstreamConfig(bootstrap_servers=[f"{host}:{port}" for port in ports])
    return Upstream(config, Path(), Brokers(addresses), Counters(), poller)


@pytest.fixture
def listening(stack):
    server = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
    return server.getsockname()[1]


@pytest.fixture
def refusing():
    return free_port()


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


async def test_server_without_time_left_is_tried_next(silent, listening, monkeypatch):
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.2)
    upstream = upstream_of(silent, silent, listening)
    with pytest.raises(OSError, match="no answer"):
        await upstream.dial_anyone(asyncio.Protocol)
    assert await reached(upstream) == listening


async def test_error_names_each_cause(silent, refusing, monkeypatch):
    monkeypatch.setattr(module, "ANYONE_SECONDS", 0.5)
    with pytest.raises(OSError, match=f"127.0.0.1:{silent}: no answer within 0.5 s; 127.0.0.1:{refusing}: Connect"):
        await upstream_of(silent, refusing).dial_anyone(asyncio.Protocol)


async def test_host_that_dns_cannot_have_is_an_error_of_the_address():
    """Brokers may advertise any text, and Python raises UnicodeError for such a name."""
    upstream = Upstream(UpstreamConfig(bootstrap_servers=["kafka:9092"]), Path(), Brokers([("a..b", 9092)]), Counters())
    with pytest.raises(OSError, match=r"a\.\.b:9092: the host is not a name that DNS can have"):
        await upstream.dial_anyone(asyncio.Protocol)


async def test_port_without_tls_is_not_reported_as_silent():
    async def hang_up(reader, writer):
        await reader.read(4096)  # unread bytes would reset the connection, which gives another error
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = UpstreamConfig(bootstrap_servers=[f"127.0.0.1:{port}"], tls={"verify_hostname": False})
    upstream = Upstream(config, Path(), Brokers([("127.0.0.1", port)]), Counters())
    try:
        with pytest.raises(OSError, match=f"127.0.0.1:{port}: it closed the connection in the TLS handshake"):
            await upstream.dial_anyone(asyncio.Protocol)
    finally:
        server.close()
        await server.wait_closed()


class Made(asyncio.Protocol):
    """Notes its transport, the first bytes that come, and the error that it ends with."""

    def __init__(self):
        self.transport = None
        self.received = asyncio.Event()
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received.set()

    def connection_lost(self, exc):
        self.lost.set_result(exc)


@pytest.fixture
async def poller():
    with closing(Poller()) as poller:
        yield poller
        await asyncio.sleep(0)


async def at_once(upstream):
    """True if a connection is made without a task."""
    protocol = Made()
    transport = upstream.dial_anyone_at_once(protocol)
    if transport is None:
        return False
    assert protocol.transport is transport
    transport.abort()
    await protocol.lost
    return True


async def test_ip_address_is_connected_at_once(listening, poller):
    upstream = upstream_of(listening, poller=poller)
    assert await at_once(upstream)
    upstream.brokers.learn(1, "127.0.0.1", listening)
    transport = upstream.dial_broker_at_once(1, Made())
    upstream.tick(clock.monotonic())
    assert transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    transport.abort()


async def test_name_is_connected_at_once_while_its_address_is_fresh(listening, poller):
    upstream = upstream_of(listening, host="localhost", poller=poller)
    assert not await at_once(upstream)
    await reached(upstream)
    assert await at_once(upstream)
    upstream.tick(clock.monotonic() + module.RESOLVED_SECONDS)
    assert not await at_once(upstream)


@pytest.mark.parametrize("host", ["::1", "0:0:0:0:0:0:0:1"])
async def test_broker_of_another_cluster_is_tried_last(stack, listening, poller, host):
    """Brokers may advertise any spelling of an IPv6 address."""
    foreign = stack.enter_context(closing(socket.create_server(("::1", 0), family=socket.AF_INET6))).getsockname()[1]
    upstream = upstream_of(listening, poller=poller)
    upstream.brokers = Brokers([])
    upstream.brokers.learn(1, host, foreign)
    upstream.brokers.learn(2, "127.0.0.1", listening)
    transport = upstream.dial_anyone_at_once(Made())
    assert port_of(transport) == foreign
    upstream.on_refused(transport, OtherCluster("broker_other_cluster", "another cluster"))
    transport.abort()
    assert await reached(upstream) == listening


async def test_ip_address_of_moved_broker_is_forgotten(listening, poller):
    upstream = upstream_of(listening, poller=poller)
    assert await at_once(upstream)
    upstream.tick(clock.monotonic() + module.RESOLVED_SECONDS)
    assert not upstream._resolved
    assert await at_once(upstream)


async def test_ip_address_of_another_cluster_is_tried_last(listening, refusing, poller):
    """Its answer may come long after the connection."""
    upstream = upstream_of(listening, refusing, poller=poller)
    transport = upstream.dial_anyone_at_once(Made())
    upstream.tick(clock.monotonic() + module.RESOLVED_SECONDS)
    upstream.on_refused(transport, OtherCluster("broker_other_cluster", "another cluster"))
    assert upstream._in_order() == [("127.0.0.1", refusing), ("127.0.0.1", listening)]
    transport.abort()


async def test_nothing_is_connected_at_once_without_poller(listening):
    assert not await at_once(upstream_of(listening))


async def test_refused_address_is_not_tried_at_once_until_it_serves(poller):
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = server.getsockname()
    upstream = upstream_of(address[1], poller=poller)
    assert not await at_once(upstream)
    with pytest.raises(OSError, match="Connect call failed"):
        await reached(upstream)
    with closing(socket.create_server(address)):
        assert not await at_once(upstream)
        await reached(upstream)
        assert await at_once(upstream)


async def test_address_that_failed_is_tried_at_once_later(listening, poller):
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = server.getsockname()
    upstream = upstream_of(address[1], listening, poller=poller)
    assert not await at_once(upstream)
    assert await reached(upstream) == listening
    assert await at_once(upstream)  # at the other one
    assert address in upstream._failed
    upstream.tick(clock.monotonic() + module.FAILED_SECONDS)
    with closing(socket.create_server(address)):
        protocol = Made()
        transport = upstream.dial_anyone_at_once(protocol)
        assert transport.get_extra_info("socket").getpeername() == address
        transport.abort()
        await protocol.lost


async def test_lack_of_descriptors_is_no_failure_of_the_broker(listening, poller, limit_files, next_file):
    upstream = upstream_of(listening, poller=poller)
    limit_files(next_file)
    assert not await at_once(upstream)
    with pytest.raises(OSError, match="Too many open files"):
        await upstream.dial_anyone(asyncio.Protocol)
    limit_files(1_024)
    assert await at_once(upstream)


@pytest.mark.parametrize("left", [1, 32])
async def test_last_files_connect_no_client_to_its_broker(listening, poller, limit_files, take_files, left):
    upstream = upstream_of(listening, poller=poller)
    limit_files(1_024)
    give_back = take_files(1_024 - left)
    assert not await at_once(upstream)
    with pytest.raises(OSError, match="the last 64 are Weir's own"):
        await upstream.dial_anyone(asyncio.Protocol)
    give_back()
    assert await at_once(upstream)


async def test_silent_address_is_given_up_by_a_tick(silent, poller):
    upstream = upstream_of(silent, poller=poller)
    protocol = Made()
    transport = upstream.dial_anyone_at_once(protocol)
    upstream.tick(clock.monotonic())
    assert transport.connecting
    upstream.tick(clock.monotonic() + module.ANYONE_SECONDS)
    assert isinstance(await protocol.lost, TimeoutError)
    assert (protocol.transport, await at_once(upstream)) == (None, False)


@pytest.fixture
async def stopped(stack):
    """A server that takes connections and does not answer: the kernel accepts for a process that is stopped."""
    return stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))


async def sent(upstream, *, by_task=False):
    """Return the transport of a client that has sent its first bytes."""
    protocol = Made()
    transport = await upstream.dial_anyone(lambda: protocol) if by_task else upstream.dial_anyone_at_once(protocol)
    transport.write(b"request")
    return transport


async def failed_once(upstream):
    """Let a client wait in vain, and then the time of that failure pass.

    Returns the client's transport, and the time at which the failure was noticed.
    """
    transport = await sent(upstream)
    noticed = clock.monotonic() + module.ANYONE_SECONDS
    upstream.tick(noticed)
    upstream.tick(noticed + module.FAILED_SECONDS)
    return transport, noticed


def port_of(transport):
    return transport.get_extra_info("socket").getpeername()[1]


@pytest.mark.parametrize("by_task", [False, True])
async def test_stopped_broker_is_tried_last(stopped, listening, poller, by_task):
    port = stopped.getsockname()[1]
    upstream = upstream_of(port, listening, poller=poller)
    first = await sent(upstream, by_task=by_task)
    assert port_of(first) == port
    upstream.tick(clock.monotonic() + module.ANYONE_SECONDS)
    second = await sent(upstream, by_task=by_task)
    assert port_of(second) == listening
    for each in (first, second):
        each.abort()


async def test_one_client_at_a_time_tries_a_stopped_broker(stopped, listening, poller):
    port = stopped.getsockname()[1]
    upstream = upstream_of(port, listening, poller=poller)
    first, _ = await failed_once(upstream)
    tries = [await sent(upstream) for _ in range(3)]
    assert [port_of(each) for each in tries] == [port, listening, listening]
    for each in (first, *tries):
        each.abort()


async def test_broker_that_answers_again_is_tried_first(stopped, listening, poller):
    port = stopped.getsockname()[1]
    upstream = upstream_of(port, listening, poller=poller)
    first, later = await failed_once(upstream)
    trial = await sent(upstream)
    connections = [stopped.accept()[0] for _ in range(2)]
    for connection in connections:
        connection.sendall(b"answer")
        connection.close()
    protocol = trial.get_protocol()
    await protocol.received.wait()
    upstream.tick(later + 2 * module.FAILED_SECONDS - 1)
    again = [await sent(upstream) for _ in range(2)]
    assert [port_of(each) for each in again] == [port, port]
    for each in (first, trial, *again):
        each.abort()


async def test_client_that_sends_nothing_accuses_no_broker(stopped, listening, poller):
    port = stopped.getsockname()[1]
    upstream = upstream_of(port, listening, poller=poller)
    idle = upstream.dial_anyone_at_once(Made())
    upstream.tick(clock.monotonic() + module.ANYONE_SECONDS)
    second = await sent(upstream)
    assert port_of(second) == port
    for each in (idle, second):
        each.abort()


async def test_brokers_that_are_all_silent_take_turns(stopped, listening, poller, monkeypatch):
    times = itertools.count(clock.monotonic(), module.ANYONE_SECONDS)
    monkeypatch.setattr(clock, "monotonic", lambda: next(times))
    ports = [stopped.getsockname()[1], listening]
    upstream = upstream_of(*ports, poller=poller)
    made = []
    for _ in ports:
        made.append(await sent(upstream))
        upstream.tick(clock.monotonic())
    made += [await sent(upstream) for _ in range(4)]
    assert [port_of(each) for each in made[2:]] == 2 * ports
    for each in made:
        each.abort()


@pytest.mark.parametrize(("others", "seconds"), [(0, module.CONNECT_SECONDS), (1, module.ANYONE_SECONDS)])
async def test_handshake_has_the_time_of_its_address(listening, poller, others, seconds):
    """A broker that is busy with handshakes would have to begin again, and take even longer."""
    addresses = [("127.0.0.1", listening), *[("127.0.0.1", 1)] * others]
    servers = [f"{host}:{port}" for host, port in addresses]
    config = UpstreamConfig(bootstrap_servers=servers, tls={"verify_hostname": False})
    upstream = Upstream(config, Path(), Brokers(addresses), Counters(), poller)
    protocol = Made()
    began = clock.monotonic()
    transport = upstream.dial_anyone_at_once(protocol)
    upstream.tick(began + seconds - 0.1)
    assert transport.connecting
    upstream.tick(clock.monotonic() + seconds)
    assert isinstance(await protocol.lost, TimeoutError)


async def test_kernel_probes_the_broker_of_an_open_connection(listening):
    upstream = upstream_of(listening)
    ended = await upstream.dial_anyone(asyncio.Protocol)
    ended.close()
    transport = await upstream.dial_anyone(asyncio.Protocol)
    upstream.tick(clock.monotonic())
    assert transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    transport.close()
