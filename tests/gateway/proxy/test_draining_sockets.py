"""The end of a session on real sockets, as client and broker see it, over TCP and over TLS."""

import asyncio
import gc
import os
import socket
import ssl
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from types import SimpleNamespace

import pytest
import uvloop

from gateway.cluster.upstream import attempt, connect
from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits, ConnectionQuotas
from gateway.features.topic_quotas.produce_inspector import TopicInspection
from gateway.observer import Outlet
from gateway.proxy.connection import Session
from gateway.proxy.context import SessionContext
from gateway.proxy.core import SessionCore
from gateway.proxy.counters import Counters
from gateway.proxy.handler import EndConnection
from gateway.proxy.in_flight import MAX_IN_FLIGHT
from gateway.proxy.large_requests import LARGE_BYTES
from gateway.proxy.listeners.tls_acceptor import AcceptedTlsClient, TlsAcceptor
from gateway.proxy.poller import Poller
from gateway.proxy.produce_gate import ProduceGate
from gateway.proxy.sessions import ANSWER_SECONDS, SessionHost, Sessions
from gateway.proxy.socket_transport import SocketTransport
from gateway.proxy.tls.handshakes import Handshakes
from gateway.proxy.tls.principal import PrincipalMapping
from gateway.proxy.tls.tls_transport import TlsTransport
from gateway.quotas.engine import QuotaEngine
from gateway.steps import at_once
from loadtest.testkit.certificates import LOOPBACK, Authority
from tests.gateway.features.topic_quotas.test_produce_inspector import HOT, Metered, produced
from tests.gateway.features.topic_quotas.test_produce_inspector import produce as produce_to
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import START, gateway_address, limits
from tests.gateway.running import until

HOST = "127.0.0.1"
CLIENT = (HOST, 40_000)
FETCHES = 200


def server_context(authority):
    files = authority.issue("server", LOOPBACK)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    return context


class Place:
    """A port that accepts sessions. The test itself is the broker behind it. All connections are closed at the end.

    With `own`, both connections have transports of Weir's own.
    """

    def __init__(self, authority=None, broker_authority=None, *, own=False):
        self._authority = authority
        self._own = own
        self._broker_tls = None if broker_authority is None else server_context(broker_authority)
        self._dial_tls = None if broker_authority is None else ssl.create_default_context(cafile=broker_authority.cert)
        engine = QuotaEngine(limits(produce=1_000), START)
        self.counters = counters = Counters()
        outlet = Outlet("", [counters])
        self.sessions = Sessions(counters, outlet, max_idle_seconds=600.0)
        self._quotas = ConnectionQuotas(engine, ConnectionLimits(1_000, listeners={"clients": AcceptLimits()}), START)
        context = SessionContext(engine, counters, gateway_address, 1 << 20, {}, ProduceGate())
        context.outlet = outlet
        self._host = SessionHost(context, self.sessions, self._dial, dial_at_once=self._dial_at_once if own else None)
        self._brokers = asyncio.Queue()
        self._open = AsyncExitStack()
        self.dial_error = None
        self.attempts = []
        self.dialed = []
        self.first_address = None  # of the attempt without a task; the broker's if None

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        self._broker = await self._open.enter_async_context(
            await asyncio.start_server(self._arrived_at_broker, HOST, 0, ssl=self._broker_tls)
        )
        if self._authority is not None:
            live = SimpleNamespace(context=server_context(self._authority))
            self._handshakes = Handshakes("clients", live, 20.0, self.counters)
        if self._own:
            self._poller = Poller()
            self._open.callback(self._poller.close)
            self._port = self._accept_own()
            return self
        server = await loop.create_server(self._protocol, HOST, 0)
        await self._open.enter_async_context(server)
        self._port = server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        for session in self.sessions:
            session.abort()
        for transport in self.dialed:
            transport.abort()
        # One may still wait for the end of TLS. It has its socket until the event loop has closed it.
        await until(lambda: all(one.get_extra_info("socket") is None for one in self.dialed if isinstance(one, TlsTransport)))
        await self._open.aclose()

    def inspect_topics(self, quotas):
        self._host.context.topics.make_inspector = TopicInspection(quotas, 19, lambda rejection, now: None).open

    async def client(self):
        context = None if self._authority is None else ssl.create_default_context(cafile=self._authority.cert)
        reader, writer = await asyncio.open_connection(HOST, self._port, ssl=context, limit=1 << 19)
        self._open.callback(writer.close)
        return reader, writer

    async def broker(self):
        """The broker's end of the next connection."""
        return await self._brokers.get()

    def _arrived_at_broker(self, reader, writer):
        self._open.callback(writer.close)
        self._brokers.put_nowait((reader, writer))

    async def session(self):
        await until(lambda: len(self.sessions))
        (session,) = self.sessions
        return session

    def _slot(self):
        return self._quotas.accept("clients", HOST, START)

    async def _dial(self, protocol):
        if self.dial_error is not None:
            raise self.dial_error
        self.dialed.append(await connect(self._broker.sockets[0].getsockname(), protocol, self._dial_tls))
        return self.dialed[-1]

    def _dial_at_once(self, protocol):
        if self.dial_error is not None:
            return None
        address = self.first_address or self._broker.sockets[0].getsockname()
        self.attempts.append(attempt(self._poller, address, protocol, self._dial_tls, HOST)[0])
        self.dialed.append(self.attempts[-1])
        return self.attempts[-1]

    def _protocol(self):
        slot = self._slot()
        if self._authority is None:
            return Session(self._host, slot, CLIENT)
        acceptor = TlsAcceptor("clients", lambda _: self._host, PrincipalMapping("DEFAULT"), Counter())
        return self._handshakes.begin(CLIENT, lambda: AcceptedTlsClient(acceptor, slot, CLIENT), slot.release)

    def _accept_own(self):
        server = self._open.enter_context(socket.create_server((HOST, 0)))
        server.setblocking(False)

        def accept():
            connection, _ = server.accept()
            connection.setblocking(False)
            SocketTransport(self._poller, connection, self._protocol()).serve()

        loop = asyncio.get_running_loop()
        loop.add_reader(server.fileno(), accept)
        self._open.callback(loop.remove_reader, server.fileno())
        return server.getsockname()[1]


@pytest.fixture(params=["tcp", "own tcp", "tls", "own tls", "broker's tls", "own broker's tls"])
def make_place(request, tmp_path):
    authority = Authority(tmp_path) if request.param.endswith("tls") else None
    both = (None, authority) if "broker" in request.param else (authority, None)
    return partial(Place, *both, own=request.param.startswith("own"))


def on_uvloop(scenario):
    """Run the test on Weir's event loop, because each event loop closes connections in its own way."""

    def run(make_place, caplog):
        async def limited():
            async with asyncio.timeout(60), make_place() as place:
                place.log = caplog
                await scenario(place)

        uvloop.run(limited())

    return run


async def leave(place, to_gateway, ended):
    """The client closes its connection, and is given up as its broker does not answer."""
    to_gateway.close()

    def give_up():
        for session in place.sessions:
            place.sessions.close_idle(session.last_active + ANSWER_SECONDS + 1.0)
        return ended()

    await until(give_up)


async def begin(place, *frames):
    """The streams of a client that has sent `frames` and of the broker that has received them, and the session between."""
    client, to_gateway = await place.client()
    to_gateway.write(b"".join(frames))
    broker, to_client = await place.broker()
    assert await broker.readexactly(len(b"".join(frames))) == b"".join(frames)
    return client, to_gateway, broker, to_client, await place.session()


async def leave_bytes_behind(place, last=b""):
    """A client that has gone after its `last` bytes, while its broker reads nothing.

    Returns the broker's end, the bytes of whole requests for it, and the session.
    """
    _, to_gateway, broker, _, session = await begin(place, m.heartbeat(1))
    sent = await overfill_broker(to_gateway, session)
    to_gateway.write(last)
    await leave(place, to_gateway, lambda: session._client is None)
    return broker, sent, session


async def overfill_broker(to_gateway, session):
    """Send requests until the gateway holds bytes of them, as the broker reads nothing. Returns all of the requests."""
    body = m.heartbeat(2)[4:] + bytes(30_000)
    request, sent = len(body).to_bytes(4) + body, 0
    while not session._broker.get_write_buffer_size():
        to_gateway.write(request)
        await to_gateway.drain()
        sent += 1
        await asyncio.sleep(0)
    return sent * request


@asynccontextmanager
async def without_garbage():
    """The block leaves no session that only the garbage collector would free."""
    gc.collect()
    gc.disable()
    try:
        yield
        await until(lambda: not any(isinstance(found, SessionCore | Session) for found in gc.get_objects()))
    finally:
        gc.enable()


async def over(place, writer):
    """The client sees the end of the stream and closes, so the session ends as well."""
    writer.close()
    await place.sessions.wait_empty()


@on_uvloop
async def test_idle_client_sees_close_at_once(place):
    client, to_gateway = await place.client()
    session = await place.session()
    session.drain()
    session.drain()
    assert await client.read() == b""
    assert (session.draining, session.half_closed) == (True, True)
    await over(place, to_gateway)


@on_uvloop
async def test_requests_in_flight_are_answered_before_close(place):
    client, to_gateway, _, to_client, session = await begin(place, m.heartbeat(1), m.heartbeat(2))
    session.drain()
    assert (session.half_closed, session.under_way) == (False, 2)
    to_client.write(m.beat(1) + m.beat(2))
    assert await client.read() == m.beat(1) + m.beat(2)
    await over(place, to_gateway)


@on_uvloop
async def test_unread_requests_do_not_reset_before_answer_is_read(place):
    """Linux resets a socket that is closed with unread bytes, and the client may lose the bytes that it has not read yet."""
    client, to_gateway, broker, to_client, session = await begin(place, m.heartbeat(1))
    session.drain()
    late = m.produce(2, size=200_000)
    to_gateway.write(late * 4)
    to_client.write(m.beat(1))
    assert await client.readexactly(len(m.beat(1))) == m.beat(1)
    to_gateway.write(late * 4)
    assert await client.read() == b""
    await over(place, to_gateway)
    assert await broker.read() == b""


@on_uvloop
async def test_ended_session_leaves_no_garbage(place):
    """A cycle of references would cost a garbage collection for each few hundred connections."""
    async with without_garbage():
        for ended_by_broker in (False, True):
            client, to_gateway, broker, to_client, session = await begin(place, m.produce(1))
            to_client.write(m.produced(1))
            await client.readexactly(len(m.produced(1)))
            del session
            (to_client if ended_by_broker else to_gateway).close()
            await (client if ended_by_broker else broker).read()
            await over(place, to_gateway)


@on_uvloop
async def test_inspected_answers_leave_no_garbage(place):
    """A whole answer, one that the broker does not finish, and one that it does not begin."""
    place.inspect_topics(Metered.quotas_of())
    answer = produced(1, (HOT, {0: 0}))
    async with without_garbage():
        for size in (len(answer), len(answer) - 1, 0):
            client, to_gateway, _, to_client, session = await begin(place, produce_to(1, (HOT, {0: m.batch(100)})))
            to_client.write(answer[:size])
            del session
            to_client.close()
            await client.read()
            await over(place, to_gateway)


@on_uvloop
async def test_held_request_without_an_answer_leaves_no_garbage(place):
    place.inspect_topics(Metered.quotas_of())
    over_quota, held = m.produce(1, size=10_100), produce_to(2, (HOT, {0: m.batch(100)}))
    async with without_garbage():
        client, to_gateway = await place.client()
        to_gateway.write(over_quota + held)
        broker, to_client = await place.broker()
        assert await broker.readexactly(len(over_quota)) == over_quota
        to_client.write(m.produced(1))
        assert await broker.readexactly(len(held)) == held
        to_client.close()
        await client.read()
        await over(place, to_gateway)


@on_uvloop
async def test_muted_client_is_drained_and_its_requests_dropped(place):
    over_quota = m.produce(1, size=100_000)
    client, to_gateway, broker, to_client, session = await begin(place, over_quota)
    to_gateway.write(m.produce(2) + m.produce(3))
    to_client.write(m.produced(1))
    answer = await client.readexactly(len(m.produced(1)))
    assert answer != m.produced(1)  # it says how long to wait
    session.drain()
    assert await client.read() == b""
    await over(place, to_gateway)
    assert await broker.read() == b""


@on_uvloop
async def test_muted_client_requests_without_acks_are_forwarded(place):
    """acks=0: no client would resend these requests."""
    first, second, third = (m.produce(number, acks=0, size=20_000) for number in (1, 2, 3))
    client, to_gateway, broker, _, session = await begin(place, first)
    to_gateway.write(second)
    to_gateway.write(third)
    await until(lambda: session.unread_client_bytes() >= len(second + third))
    session.drain()
    assert await client.read() == b""
    await over(place, to_gateway)
    assert await broker.read() == second + third


@on_uvloop
async def test_client_that_keeps_its_side_open_is_closed(place):
    client, to_gateway = await place.client()
    (await place.session()).drain()
    await place.sessions.wait_empty()
    assert await client.read() == b""
    to_gateway.close()


@on_uvloop
async def test_slow_reader_gets_whole_response(place):
    client, to_gateway, _, to_client, session = await begin(place, m.fetch(1))
    session.drain()
    large = m.fetched(1, size=10_000_000)
    to_client.write(large)
    received = bytearray()
    while chunk := await client.read(1 << 20):
        received += chunk
        await asyncio.sleep(0.1)  # the reading is slow, and that is what is tested
    assert bytes(received) == large
    await over(place, to_gateway)


@on_uvloop
async def test_broker_close_ends_drain(place):
    client, to_gateway, _, to_client, session = await begin(place, m.heartbeat(1))
    session.drain()
    to_client.close()
    assert await client.read() == b""
    await over(place, to_gateway)


@on_uvloop
async def test_connecting_session_reaches_its_broker_first(place):
    client, to_gateway = await place.client()
    session = await place.session()
    to_gateway.write(m.heartbeat(1))
    await until(lambda: session.under_way)
    session.drain()
    broker, to_client = await place.broker()
    assert await broker.readexactly(len(m.heartbeat(1))) == m.heartbeat(1)
    to_client.write(m.beat(1))
    assert await client.read() == m.beat(1)
    await over(place, to_gateway)


@on_uvloop
async def test_idle_client_that_reads_nothing_is_aborted_once(place):
    _, _, _, to_client, session = await begin(place, m.fetch(1))
    to_client.write(m.fetched(1, size=20_000_000))
    await until(lambda: session._client.get_write_buffer_size())
    for seconds in (1_000, 1_001):
        place.sessions.close_idle(session.last_active + seconds)
    await place.sessions.wait_empty()
    assert place.counters.rejected == {"idle": 1}


@on_uvloop
async def test_throttle_end_while_closing_has_no_effect(place):
    """The broker is gone, the client has not read the earlier responses yet, and requests wait."""
    over_quota = m.produce(2, acks=0, size=LARGE_BYTES - 1_000)  # a long throttle, and the next request is read as well
    client, to_gateway, broker, to_client, session = await begin(place, m.fetch(1))
    to_gateway.write(over_quota + m.produce(3))
    assert await broker.readexactly(len(over_quota)) == over_quota
    large = memoryview(m.fetched(1, size=50_000_000))
    written = 0
    while not session._client.get_write_buffer_size():  # until the kernel takes no more for a client that does not read
        to_client.write(large[written : written + 100_000])
        written += 100_000
        await asyncio.sleep(0)
    to_client.close()
    await until(lambda: session.closing)
    assert session._timer is not None
    session.let_go({session._core.throttle._bucket})
    await until(lambda: session._timer is None)
    received = bytearray()
    with suppress(ConnectionResetError):
        while chunk := await client.read(1 << 20):
            received += chunk
    assert len(received) == written
    assert not place.counters.protocol_errors
    await over(place, to_gateway)


@on_uvloop
async def test_client_error_is_not_blamed_on_broker(place):
    """The request waited, and the session processes it after the broker's answer."""
    over_quota = m.produce(1, size=10_100)
    _, to_gateway, broker, to_client, session = await begin(place, m.heartbeat(0))
    to_gateway.write(over_quota + b"\xff" * 12)
    assert await broker.readexactly(len(over_quota)) == over_quota
    to_client.write(m.beat(0))
    await until(lambda: session._timer is None)
    to_client.write(m.produced(1))
    await place.sessions.wait_empty()
    (line,) = (record.getMessage() for record in place.log.records if "broke the protocol" in record.getMessage())
    assert "the client broke the protocol" in line


@on_uvloop
async def test_unexpected_dial_error_closes_connection(place):
    place.dial_error = RuntimeError("no context")
    client, to_gateway = await place.client()
    to_gateway.write(m.heartbeat(1))
    with suppress(OSError):
        assert await asyncio.wait_for(client.read(), 20) == b""
    await over(place, to_gateway)
    assert place.counters.protocol_errors == {"internal": 1}
    (line,) = (record for record in place.log.records if getattr(record, "reason", "") == "internal")
    assert "no context" in str(line.exc_info[1])


@on_uvloop
async def test_client_gets_answer_before_broken_one(place):
    """The client has further requests on their way, and the broker goes on sending."""
    requests = [m.heartbeat(number) for number in range(1, 4)]
    client, to_gateway, broker, to_client, _ = await begin(place, *requests)
    to_client.write(m.beat(1) + m.beat(7))
    assert await client.readexactly(len(m.beat(1))) == m.beat(1)
    to_gateway.write(m.produce(4) * 20)
    to_client.write(m.beat(2))
    with suppress(OSError):
        assert await client.read() == b""
    await over(place, to_gateway)
    with suppress(OSError):
        await broker.read()
    assert place.counters.protocol_errors == {"broker_order": 1}


async def crowd_and_close(place, *held):
    """A closed session whose client reads nothing, and which holds the requests behind `MAX_IN_FLIGHT` others.

    Returns the streams of the broker, which is to answer heartbeats from now on.
    """
    fetches = [m.fetch(number) for number in range(FETCHES)]
    beats = [m.heartbeat(number) for number in range(FETCHES, MAX_IN_FLIGHT + 1)]
    _, to_gateway = await place.client()
    to_gateway.transport.pause_reading()
    # A size that is set stays. Otherwise the kernel may enlarge the buffer and take the bytes that the session holds.
    to_gateway.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    to_gateway.write(b"".join([*fetches, *beats, *held]))
    broker, to_client = await place.broker()
    assert await broker.readexactly(len(b"".join(fetches + beats))) == b"".join(fetches + beats)
    session = await place.session()
    for number in range(FETCHES):
        full = session._client.get_write_buffer_size() > 0
        to_client.write(m.fetched_nothing(number) if full else m.fetched(number, size=100_000))
        await until(lambda left=MAX_IN_FLIGHT - number: session.under_way <= left)
    assert session._client.get_write_buffer_size() > 0
    session.close("idle")
    assert session.closing
    return broker, to_client, session


@on_uvloop
async def test_closed_session_forwards_no_held_request(place):
    """Bytes that the client does not read keep the connection for a while."""
    broker, to_client, session = await crowd_and_close(place, m.produce(5_000))
    to_client.write(b"".join(m.beat(number) for number in range(FETCHES, MAX_IN_FLIGHT + 1)))
    await until(lambda: session.under_way <= 1)
    session.abort()
    with suppress(ConnectionResetError):
        assert await broker.read() == b""


@on_uvloop
async def test_closed_session_makes_room_for_others(place):
    """Its client reads nothing, so the close alone does not end it."""
    _, _, session = await crowd_and_close(place)
    session.make_room(EndConnection("the memory is full", limit="collected_bytes"))
    await until(lambda: session._client is None)
    assert place.counters.rejected == {"collected_bytes": 1}


@pytest.mark.parametrize("own", [False, True])
def test_damaged_tls_record_is_counted_and_logged(tmp_path, caplog, own):
    async def scenario():
        async with asyncio.timeout(60), Place(Authority(tmp_path), own=own) as place:
            client, to_gateway, broker, to_client, _ = await begin(place, m.heartbeat(1))
            to_client.write(m.beat(1))
            assert await client.readexactly(len(m.beat(1))) == m.beat(1)
            os.write(to_gateway.get_extra_info("socket").fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))
            await place.sessions.wait_empty()
            with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
                await client.read()
            assert await broker.read() == b""
            assert place.counters.protocol_errors == {"tls": 1}

    uvloop.run(scenario())
    (line,) = (record.getMessage() for record in caplog.records if getattr(record, "reason", "") == "tls")
    assert "the client broke the protocol: its TLS is invalid" in line


@on_uvloop
async def test_session_counts_until_its_broker_has_all_bytes(place):
    """A drain waits for them, and the limits on connections bound them."""
    broker, sent, _ = await leave_bytes_behind(place)
    assert len(place.sessions) == 1
    assert await broker.read() == sent
    await place.sessions.wait_empty()


@on_uvloop
async def test_handler_may_be_ready_after_the_session_has_ended(place):
    _, to_gateway, _, _, session = await begin(place, m.heartbeat(1))
    await leave(place, to_gateway, lambda: not hasattr(session, "_core"))
    session.call_ready()


@on_uvloop
async def test_broker_is_read_for_topics_after_the_client_has_gone(place):
    quotas = Metered.quotas_of()
    place.inspect_topics(quotas)
    _, to_gateway, broker, to_client, session = await begin(place, produce_to(1, (HOT, {0: m.batch(100)})))
    await leave(place, to_gateway, lambda: session._client is None)
    assert len(place.sessions) == 1
    to_client.write(produced(1, (HOT, {0: 0})))
    assert await broker.read() == b""
    await place.sessions.wait_empty()
    assert [row.appended_bytes for row in at_once(quotas.rows(START)) if row.topic == HOT] == [100]


@on_uvloop
async def test_requests_before_a_bad_frame_reach_a_slow_broker(place):
    broker, sent, _ = await leave_bytes_behind(place, b"\xff" * 20)
    assert await broker.read() == sent


@on_uvloop
async def test_requests_before_a_cut_one_reach_a_slow_broker(place):
    begun = m.produce(3, size=1_000)[:500]
    broker, sent, _ = await leave_bytes_behind(place, begun)
    assert await broker.read() == sent + begun


@on_uvloop
async def test_broker_that_takes_no_bytes_is_cut_off_as_idle(place):
    _, _, session = await leave_bytes_behind(place)
    place.sessions.reconsider()
    place.sessions.close_idle(session.last_active + 1_000)
    await place.sessions.wait_empty()
