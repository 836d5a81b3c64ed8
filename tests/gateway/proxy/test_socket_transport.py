"""Weir's own transport on real sockets, with its poller."""

import asyncio
import errno
import random
import socket
import struct
from contextlib import AsyncExitStack, closing, suppress
from sys import getrefcount

import pytest
import uvloop

from gateway import clock
from gateway.proxy.poller import MAX_EVENTS, Poller, make_poller
from gateway.proxy.socket_memory import BUFFER_BYTES, CROWDED_READ_BYTES, MAX_BUFFER_PARTS, MAX_UNSENT_BYTES, READ_BYTES
from gateway.proxy.socket_transport import HAND_OVER_READS, SocketTransport, dial
from tests.gateway.running import until

LINGER_ZERO = struct.pack("ii", 1, 0)
"""For SO_LINGER: the kernel resets the connection at its close."""

LARGE = b"x" * 20_000_000
"""More bytes than the kernel's buffers take."""


class Calls(asyncio.Protocol):
    """Notes the calls of its transport. `on_data` is called with each chunk."""

    def __init__(self):
        self.log = []
        self.received = bytearray()
        self.ended = asyncio.Event()
        self.error = None
        self.keeps_open = False
        self.on_data = lambda _: None
        self.on_made = lambda: None

    def connection_made(self, transport):
        self.log.append("made")
        self.transport = transport
        self.on_made()

    def data_received(self, data):
        self.received += data
        self.on_data(data)

    def eof_received(self):
        self.log.append("eof")
        return self.keeps_open

    def pause_writing(self):
        self.log.append("pause")

    def resume_writing(self):
        self.log.append("resume")

    def connection_lost(self, exc):
        self.log.append("lost")
        self.error = exc
        self.ended.set()


class Buffered(Calls):
    """The same, with a buffer of its own for the bytes."""

    def __init__(self, size):
        super().__init__()
        self._buffer = bytearray(size)

    def get_buffer(self, sizehint):
        return memoryview(self._buffer)

    def buffer_updated(self, count):
        self.data_received(bytes(self._buffer[:count]))


class Side:
    """A poller, and the tests' own ends of its connections."""

    def __init__(self, open_):
        self.poller = Poller()
        self._open = open_
        open_.callback(self.poller.close)

    def pair(self, protocol):
        """A transport that serves `protocol`, and the socket of its peer."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            peer = self._open.enter_context(closing(socket.create_connection(server.getsockname())))
            connection, _ = server.accept()
        for end in (peer, connection):
            end.setblocking(False)
        transport = SocketTransport(self.poller, connection, protocol)
        self._open.callback(transport.abort)
        transport.serve()
        return transport, peer


@pytest.fixture
async def side():
    async with asyncio.timeout(60), AsyncExitStack() as open_:
        yield Side(open_)
        await asyncio.sleep(0)


async def read(peer, count):
    received = bytearray()
    while len(received) < count and (chunk := await asyncio.get_running_loop().sock_recv(peer, 1 << 20)):
        received += chunk
    return bytes(received)


async def write(peer, data):
    await asyncio.get_running_loop().sock_sendall(peer, data)


async def test_bytes_pass_in_both_directions(side):
    protocol = Calls()
    transport, peer = side.pair(protocol)
    await write(peer, b"question")
    await until(lambda: protocol.received == b"question")
    transport.write(b"answer")
    assert await read(peer, 6) == b"answer"
    assert (protocol.log, transport.is_closing()) == (["made"], False)


async def test_slow_peer_pauses_writer_and_gets_every_byte(side):
    protocol = Calls()
    transport, peer = side.pair(protocol)
    transport.set_write_buffer_limits(high=5_000_000)
    dice = random.Random(0)
    pieces = [dice.randbytes(dice.choice((1, 100, 5_000, 200_000))) for _ in range(500)]
    for piece in pieces:
        transport.write(piece)
    assert protocol.log == ["made", "pause"]
    assert transport.get_write_buffer_size() > 5_000_000
    everything = b"".join(pieces)
    assert await read(peer, len(everything)) == everything
    await until(lambda: not transport.get_write_buffer_size())
    assert protocol.log == ["made", "pause", "resume"]


async def test_few_waiting_bytes_keep_no_large_buffer(side):
    transport, peer = side.pair(Calls())
    transport.write(LARGE)
    buffer = bytes(range(256)) * 256
    unused = getrefcount(buffer)
    few, many = memoryview(buffer)[100:120], memoryview(buffer)[: len(buffer) // MAX_BUFFER_PARTS]
    transport.write(few)
    del few
    assert getrefcount(buffer) == unused + 1  # that of `many`
    transport.write(many)
    expected = LARGE + buffer[100:120] + many.tobytes()
    del many
    assert getrefcount(buffer) == unused + 1  # not copied
    assert await read(peer, len(expected)) == expected
    assert getrefcount(buffer) == unused


async def test_beyond_the_budget_nothing_is_read_for_a_slow_peer(side):
    """One peer has the whole budget. Another one gets no more than the kernel takes, until it reads."""
    greedy, _ = side.pair(Calls())
    greedy.write(bytes(MAX_UNSENT_BYTES + len(LARGE)))
    assert side.poller.memory.crowded
    protocol = Calls()
    transport, peer = side.pair(protocol)
    transport.set_write_buffer_limits(high=10 * len(LARGE))
    transport.write(LARGE)
    assert protocol.log == ["made", "pause"]
    assert await read(peer, len(LARGE)) == LARGE
    await until(lambda: protocol.log == ["made", "pause", "resume"])
    greedy.abort()
    assert side.poller.memory.unsent_bytes == 0
    transport.write(LARGE)
    assert protocol.log == ["made", "pause", "resume"]
    assert side.poller.memory.unsent_bytes > 0


@pytest.mark.parametrize("make", [Calls, lambda: Buffered(2 * READ_BYTES)], ids=["plain", "buffered"])
async def test_beyond_the_budget_reads_are_small(side, make):
    greedy, _ = side.pair(Calls())
    greedy.write(bytes(MAX_UNSENT_BYTES + len(LARGE)))
    protocol, sizes = make(), []
    protocol.on_data = lambda data: sizes.append(len(data))
    _, peer = side.pair(protocol)
    await write(peer, bytes(2 * READ_BYTES))
    await until(lambda: len(protocol.received) == 2 * READ_BYTES)
    assert max(sizes) <= CROWDED_READ_BYTES


async def test_paused_transport_reads_nothing(side):
    protocol = Calls()
    transport, peer = side.pair(protocol)
    transport.pause_reading()
    await write(peer, b"early")
    await asyncio.sleep(0.05)  # wait, because nothing must happen
    assert (protocol.received, transport.is_reading()) == (b"", False)
    transport.resume_reading()
    await until(lambda: protocol.received == b"early")


async def test_transport_may_begin_paused(side):
    protocol = Calls()
    protocol.on_made = lambda: protocol.transport.pause_reading()
    transport, peer = side.pair(protocol)
    await write(peer, b"early")
    await asyncio.sleep(0.05)  # wait, because nothing must happen
    assert protocol.received == b""
    transport.resume_reading()
    await until(lambda: protocol.received == b"early")


async def test_end_of_stream_closes_after_written_bytes(side):
    protocol = Calls()
    transport, peer = side.pair(protocol)
    transport.write(LARGE)
    peer.shutdown(socket.SHUT_WR)
    await until(lambda: "eof" in protocol.log)
    assert await read(peer, len(LARGE) + 1) == LARGE
    await protocol.ended.wait()
    assert (protocol.log, protocol.error) == (["made", "pause", "eof", "resume", "lost"], None)
    assert transport.get_extra_info("socket").fileno() == -1


async def test_protocol_may_keep_its_side_open(side):
    protocol = Calls()
    protocol.keeps_open = True
    transport, peer = side.pair(protocol)
    peer.shutdown(socket.SHUT_WR)
    await until(lambda: "eof" in protocol.log)
    assert transport.events == 0  # the end of the stream is readable for ever
    transport.resume_reading()
    transport.write(b"still")
    assert await read(peer, 5) == b"still"
    assert (protocol.log, transport.events) == (["made", "eof"], 0)


async def test_half_close_follows_written_bytes(side):
    protocol = Calls()
    transport, peer = side.pair(protocol)
    transport.write(LARGE)
    transport.write_eof()
    transport.write(b"never")
    assert await read(peer, len(LARGE) + 1) == LARGE
    await write(peer, b"late")
    await until(lambda: protocol.received == b"late")


async def test_close_sends_written_bytes_first(side):
    protocol = Calls()
    transport, peer = side.pair(protocol)
    transport.write(LARGE)
    transport.close()
    transport.close()
    transport.write(b"never")
    assert transport.is_closing()
    assert await read(peer, len(LARGE) + 1) == LARGE
    await protocol.ended.wait()
    assert (protocol.log, protocol.error) == (["made", "pause", "resume", "lost"], None)


async def test_abort_drops_written_bytes(side):
    protocol = Calls()
    transport, peer = side.pair(protocol)
    transport.write(LARGE)
    transport.abort()
    assert protocol.log == ["made", "pause"]  # a protocol is never called from within its own call
    await protocol.ended.wait()
    with suppress(ConnectionResetError):
        assert len(await read(peer, len(LARGE) + 1)) < len(LARGE)


async def test_reset_is_reported_as_error(side):
    protocol = Calls()
    _, peer = side.pair(protocol)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
    peer.close()
    await protocol.ended.wait()
    assert (protocol.log, type(protocol.error)) == (["made", "lost"], ConnectionResetError)


async def test_reset_of_paused_transport_waits_for_resume(side):
    """Otherwise epoll would report it in each turn of the event loop."""
    protocol = Calls()
    transport, peer = side.pair(protocol)
    transport.pause_reading()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
    peer.close()
    await asyncio.sleep(0.05)  # wait, because nothing must happen
    assert (protocol.log, side.poller._sockets) == (["made"], {})
    transport.resume_reading()
    await protocol.ended.wait()
    assert isinstance(protocol.error, ConnectionResetError)


class Told(Calls):
    def peer_closed(self):
        self.log.append("peer closed")
        self.ended.set()


@pytest.mark.parametrize("linger", [None, LINGER_ZERO], ids=["close", "reset"])
async def test_paused_protocol_is_told_once_of_peers_close(side, linger):
    protocol = Told()
    transport, peer = side.pair(protocol)
    transport.pause_reading()
    peer.send(b"last")
    if linger is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    peer.close()
    await protocol.ended.wait()
    transport.pause_reading()
    await asyncio.sleep(0.05)  # wait, because nothing must happen
    assert (protocol.log, side.poller._sockets) == (["made", "peer closed"], {})


async def test_bytes_that_came_before_a_pause_are_no_close(side):
    """The kernel reports both sockets at once. The bytes of one pause the other, as a broker's answer mutes its client."""
    broker, client = Calls(), Told()
    _, peer = side.pair(broker)
    transport, other = side.pair(client)
    broker.on_data = lambda _: transport.pause_reading()
    peer.send(b"answer")
    other.send(b"request")
    await until(lambda: broker.received == b"answer")
    assert (client.log, client.received) == (["made"], b"")
    transport.resume_reading()
    await until(lambda: client.received == b"request")


async def test_told_protocol_still_gets_last_bytes(side):
    protocol = Told()
    transport, peer = side.pair(protocol)
    transport.pause_reading()
    peer.send(b"last")
    peer.close()
    await protocol.ended.wait()
    protocol.ended.clear()
    transport.resume_reading()
    await protocol.ended.wait()
    assert bytes(protocol.received) == b"last"


async def test_write_to_reset_connection_ends_it(side):
    protocol = Calls()
    transport, peer = side.pair(protocol)
    transport.pause_reading()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
    peer.close()
    transport.write(b"lost")
    transport.write(b"lost")
    await protocol.ended.wait()
    assert isinstance(protocol.error, ConnectionError)


async def test_error_of_protocol_ends_only_its_connection(side, caplog):
    broken, sound = Calls(), Calls()
    broken.on_data = lambda _: 1 // 0
    _, peer = side.pair(broken)
    _, other = side.pair(sound)
    await write(peer, b"a")
    await write(other, b"b")
    await broken.ended.wait()
    await until(lambda: sound.received == b"b")
    assert isinstance(broken.error, ZeroDivisionError)
    assert (sound.log, caplog.records[0].reason) == (["made"], "internal")


async def test_error_of_protocol_at_its_start_ends_only_its_connection(side, caplog):
    broken, sound = Calls(), Calls()
    broken.on_made = lambda: 1 // 0
    _, peer = side.pair(broken)
    _, other = side.pair(sound)
    await broken.ended.wait()
    assert await read(peer, 1) == b""
    await write(other, b"request")
    await until(lambda: sound.received == b"request")
    assert "a bug of Weir's" in caplog.text


async def test_descriptor_is_not_reused_within_a_turn(side):
    """Else the second connection's event would reach a socket that is opened in its place."""
    first, second, opened = Calls(), Calls(), []

    def replace(_):
        numbers = {each.get_extra_info("socket").fileno() for each in (one, two)}
        one.abort()
        two.abort()
        with socket.socket() as new:
            opened.append(new.fileno() not in numbers)

    first.on_data = second.on_data = replace
    one, peer = side.pair(first)
    two, other = side.pair(second)
    peer.send(b"a")
    other.send(b"b")
    await first.ended.wait()
    await second.ended.wait()
    assert opened == [True]
    assert first.received + second.received in (b"a", b"b")


async def test_busy_socket_is_handed_over_until_it_pauses(side):
    protocol = Calls()
    transport, peer = side.pair(protocol)
    for count in range(1, 2 * HAND_OVER_READS):
        await write(peer, b"x")
        await until(lambda count=count: len(protocol.received) == count)
        assert transport.direct == (count >= HAND_OVER_READS)
    transport.pause_reading()
    await write(peer, b"y")
    await asyncio.sleep(0.05)  # wait, because nothing must happen
    assert (transport.direct, protocol.received[-1:]) == (False, b"x")
    transport.resume_reading()
    await until(lambda: protocol.received.endswith(b"y"))
    assert not transport.direct


@pytest.mark.parametrize("ending", ["peer", "close", "abort"])
async def test_handed_over_socket_ends_like_others(side, ending):
    protocol = Calls()
    transport, peer = side.pair(protocol)
    for count in range(1, HAND_OVER_READS + 1):
        await write(peer, b"x")
        await until(lambda count=count: len(protocol.received) == count)
    assert transport.direct
    if ending == "peer":
        peer.close()
    else:
        getattr(transport, ending)()
    await protocol.ended.wait()
    assert protocol.error is None
    assert transport.get_extra_info("socket").fileno() == -1


def test_reset_behind_last_bytes_ends_busy_socket():
    """uvloop stops watching a socket after an error, even if its reader has not seen the error yet."""

    async def scenario():
        async with asyncio.timeout(60), AsyncExitStack() as open_:
            protocol = Calls()
            transport, peer = Side(open_).pair(protocol)
            for count in range(1, HAND_OVER_READS + 1):
                await write(peer, b"x")
                await until(lambda count=count: len(protocol.received) == count)
            assert transport.direct
            peer.send(b"last")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
            peer.close()
            await protocol.ended.wait()
            assert protocol.received.endswith(b"last")
            assert isinstance(protocol.error, ConnectionResetError)

    uvloop.run(scenario())


async def test_full_kernel_ends_connection(side):
    """epoll_ctl(2) fails if too many sockets are watched."""

    class FullEpoll:
        def register(self, fd, events):
            raise OSError(errno.ENOSPC, "No space left on device")

        def unregister(self, fd):
            epoll.unregister(fd)

    protocol = Calls()
    transport, _ = side.pair(protocol)
    epoll, side.poller._epoll = side.poller._epoll, FullEpoll()
    transport.pause_reading()
    transport.resume_reading()
    side.poller._epoll = epoll
    await protocol.ended.wait()
    assert protocol.error.errno == errno.ENOSPC


async def test_buffered_protocol_gets_bytes_in_its_own_buffer(side):
    plain = Calls()
    transport, peer = side.pair(plain)
    await write(peer, b"a")
    await until(lambda: plain.received == b"a")
    buffered = Buffered(100)
    transport.set_protocol(buffered)
    assert transport.get_protocol() is buffered
    await write(peer, b"b" * 250)
    await until(lambda: buffered.received == b"b" * 250)
    assert plain.received == b"a"


async def test_chunks_of_one_read_are_bounded(side):
    protocol = Calls()
    chunks, sent = [], random.Random(0).randbytes(8 * BUFFER_BYTES)
    protocol.on_data = chunks.append
    transport, peer = side.pair(protocol)
    transport.pause_reading()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * BUFFER_BYTES)
    sending = asyncio.create_task(write(peer, sent))
    await asyncio.sleep(0.05)  # the kernel's buffers fill
    transport.resume_reading()
    await sending
    await until(lambda: len(protocol.received) == len(sent))
    assert protocol.received == sent
    assert READ_BYTES < max(map(len, chunks)) <= BUFFER_BYTES


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_local_peer_is_connected_at_once(side, host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server:
        protocol = Calls()
        transport = dial(side.poller, server.getsockname()[:2], protocol)
        assert (protocol.log, transport.connecting) == (["made"], False)
        assert transport.get_extra_info("socket").getpeername() == server.getsockname()
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        with server.accept()[0] as peer:
            peer.setblocking(False)
            transport.write(b"hello")
            assert await read(peer, 5) == b"hello"
            transport.abort()
            await protocol.ended.wait()


async def test_refused_connection_raises(side):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    protocol = Calls()
    with pytest.raises(ConnectionRefusedError):
        dial(side.poller, address, protocol)
    assert (protocol.log, side.poller._sockets) == ([], {})


@pytest.fixture
def full_server():
    """A server whose queue is full, so that the kernel drops further connections."""
    with socket.socket() as server, socket.socket() as queued:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        queued.connect(server.getsockname())
        yield server


async def test_late_connection_sends_its_bytes(side, full_server):
    protocol = Calls()
    transport = dial(side.poller, full_server.getsockname(), protocol)
    assert (protocol.log, transport.connecting) == ([], True)
    transport.write(b"waiting")
    assert transport.get_write_buffer_size() == 7
    first, _ = full_server.accept()  # makes room; the kernel of the client tries again after a second
    with first:
        await until(lambda: not transport.connecting)
        assert protocol.log == ["made"]
        with full_server.accept()[0] as peer:
            peer.setblocking(False)
            assert await read(peer, 7) == b"waiting"
            transport.abort()
            await protocol.ended.wait()


@pytest.mark.parametrize("end", [lambda each: each.fail(TimeoutError()), lambda each: each.abort(), lambda each: each.close()])
async def test_attempt_that_is_given_up_only_loses(side, full_server, end):
    protocol = Calls()
    transport = dial(side.poller, full_server.getsockname(), protocol)
    end(transport)
    await protocol.ended.wait()
    assert protocol.log == ["lost"]
    assert transport.get_extra_info("socket").fileno() == -1


async def test_closed_poller_ends_a_transport_with_bytes_to_send(side):
    protocol = Calls()
    transport, _ = side.pair(protocol)
    transport.write(LARGE)
    side.poller.close()
    transport.close()
    await protocol.ended.wait()
    assert isinstance(protocol.error, ValueError)


async def test_only_uvloop_gets_a_poller():
    assert make_poller() is None


def test_uvloops_transports_can_be_chosen(monkeypatch):
    async def has_own():
        poller = make_poller()
        if poller is not None:
            poller.close()
        return poller is not None

    assert uvloop.run(has_own())
    monkeypatch.setenv("WEIR_OWN_TRANSPORTS", "0")
    assert not uvloop.run(has_own())


async def test_crowd_lets_the_event_loop_go_on(side):
    """Sockets that are ready again at once come after all others."""
    served, turns = [], []
    loop = asyncio.get_running_loop()

    def serve(number, peer):
        if not served:
            loop.call_soon(lambda: turns.append(len(served)))
        served.append(number)
        peer.send(b"x")

    for number in range(3 * MAX_EVENTS):
        calls = Calls()
        _, peer = side.pair(calls)
        calls.on_data = lambda _, number=number, peer=peer: serve(number, peer)
        peer.send(b"x")
    await until(lambda: len(served) >= 3 * MAX_EVENTS)
    assert turns == [MAX_EVENTS]
    assert sorted(served[: 3 * MAX_EVENTS]) == list(range(3 * MAX_EVENTS))


async def test_crowd_gets_the_time_that_others_take(side, monkeypatch):
    """Otherwise sockets that the event loop watches itself would have a read each in every turn, and the crowd eight."""
    now = 0.0
    monkeypatch.setattr(clock, "busy", lambda: now)

    def take_a_second(_):
        nonlocal now
        now += 1.0

    for _ in range(5 * MAX_EVENTS):
        calls = Calls()
        calls.on_data = take_a_second
        side.pair(calls)[1].send(b"x")
    served = []
    for others in (100.0, 1.5 * MAX_EVENTS, 0.0, 100.0):
        began = now = now + others
        side.poller._poll()
        served.append(now - began)
    assert served == [MAX_EVENTS, 2 * MAX_EVENTS, MAX_EVENTS, MAX_EVENTS]
