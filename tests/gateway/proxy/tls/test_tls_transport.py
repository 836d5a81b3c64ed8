"""TLS between a transport of bytes and a session, in memory: the client is OpenSSL's, the transport below a list."""

import asyncio
import ssl
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.socket_memory import BUFFER_BYTES, READ_BYTES
from gateway.proxy.tls import tls_transport as module
from gateway.proxy.tls.contexts import ClientTls, ServerTls, client_context, server_context
from gateway.proxy.tls.tls_records import MAX_RECORDS, MAX_REPLY_BYTES, MAX_SURPLUS_BYTES
from gateway.proxy.tls.tls_transport import TlsTransport
from loadtest.testkit.certificates import LOOPBACK, Authority

LARGE = bytes(range(256)) * 1_200
"""More than fits into one read."""


class Below(asyncio.Transport):
    """The transport below. `sent` is what the gateway has written since the client last looked."""

    def __init__(self):
        super().__init__()
        self.sent = []
        self.writes = 0
        self.reading = True
        self.closed = None
        self.ended = asyncio.Event()
        self.unsent = 0

    def write(self, data):
        self.writes += 1
        self.sent.append(bytes(data))

    def get_write_buffer_size(self):
        return self.unsent

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def is_closing(self):
        return self.closed is not None

    def close(self):
        self.closed = self.closed or "closed"

    def abort(self):
        self.closed = "aborted"
        self.ended.set()


class Client:
    """An OpenSSL client in memory."""

    def __init__(self, context):
        self.incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self._outgoing, server_hostname="localhost")

    def step(self, work):
        """Call a function, and return the bytes for the gateway."""
        with suppress(ssl.SSLWantReadError):
            work()
        return self._outgoing.read()

    def encrypted(self, data):
        rest = memoryview(data)
        while rest:
            rest = rest[self.tls.write(rest) :]
        return self._outgoing.read()

    def read(self):
        """All bytes that have come; None as the last one stands for close_notify."""
        found = []
        try:
            while data := self.tls.read(1 << 20):
                found.append(data)
            found.append(None)
        except ssl.SSLZeroReturnError:
            found.append(None)
        except ssl.SSLWantReadError:
            pass
        return found


class Session(asyncio.Protocol):
    """The handshake, and the session after it. Pauses with `pause` set."""

    def __init__(self):
        self.seen = []
        self.received = bytearray()
        self.pause = False

    def check(self, received, outgoing):
        pass

    def finished(self):
        self.seen.append("finished")
        return self

    def failed(self, error):
        self.seen.append(error.reason)

    def lost(self, error):
        self.seen.append("handshake lost")

    def connection_made(self, transport):
        self.seen.append("connection_made")
        self._transport = transport

    def data_received(self, data):
        self.received += data
        if self.pause:
            self._transport.pause_reading()

    def eof_received(self):
        self.seen.append("eof_received")

    def connection_lost(self, exc):
        self.seen.append("connection_lost")
        self.error = exc


class Connection:
    def __init__(self, authority, *, mine=None, **client):
        """`mine` is the client's certificate."""
        files = authority.issue("server", LOOPBACK)
        authenticated = (None, "none") if mine is None else (authority.cert, "required")
        server = server_context(ServerTls(files.cert, files.key, *authenticated, "1.2"))
        self.session, self.below = Session(), Below()
        self.transport = TlsTransport(server, self.session)
        self.transport.connection_made(self.below)
        pair = (None, None) if mine is None else (mine.cert, mine.key)
        context = client_context(ClientTls(authority.cert, *pair, verify_hostname=True, min_version="1.2"))
        for name, value in client.items():
            setattr(context, name, value)
        self.client = Client(context)

    def give(self, data, step=READ_BYTES):
        """Let the gateway read bytes, as far as it reads. Returns the others."""
        rest = memoryview(data)
        while rest and self.below.reading and not self.below.is_closing():
            buffer = self.transport.get_buffer(-1)
            count = min(len(rest), len(buffer), step)
            buffer[:count] = rest[:count]
            self.transport.buffer_updated(count)
            rest = rest[count:]
        return bytes(rest)

    def take(self):
        """Let the client have what the gateway has sent."""
        for data in self.below.sent:
            self.client.incoming.write(data)
        self.below.sent.clear()

    def shake_hands(self):
        for _ in range(3):
            self.give(self.client.step(self.client.tls.do_handshake))
            self.take()
        return self


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def made(authority):
    return Connection(authority).shake_hands()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_bytes_pass_both_ways(authority, version):
    made = Connection(authority, maximum_version=version).shake_hands()
    made.give(made.client.encrypted(b"request"))
    assert made.session.received == b"request"
    made.transport.write(b"response")
    made.transport.write(LARGE)
    made.transport.write(b"")
    made.take()
    assert b"".join(made.client.read()) == b"response" + LARGE
    assert made.session.seen == ["finished", "connection_made"]


@given(sizes=st.lists(st.integers(1, 70_000), min_size=1, max_size=6), step=st.integers(1_000, BUFFER_BYTES))
def test_any_pieces_give_the_same_bytes(authority, sizes, step):
    made = Connection(authority).shake_hands()
    requests = [bytes([number]) * size for number, size in enumerate(sizes)]
    assert not made.give(b"".join(map(made.client.encrypted, requests)), step)
    assert made.session.received == b"".join(requests)


def test_record_in_single_bytes_is_read(made):
    made.give(made.client.encrypted(b"request"), step=1)
    assert made.session.received == b"request"


def test_handshake_writes_once_until_the_first_response(authority):
    """The session tickets of TLS 1.3 go out with the response."""
    made = Connection(authority).shake_hands()
    made.give(made.client.encrypted(b"request"))
    assert made.below.writes == 1
    made.transport.write(b"response")
    assert made.below.writes == 2
    made.take()
    assert made.client.read() == [b"response"]


def test_request_behind_the_handshake_is_passed_on(authority):
    made = Connection(authority)
    made.give(made.client.step(made.client.tls.do_handshake))
    made.take()
    made.give(made.client.step(made.client.tls.do_handshake) + made.client.encrypted(b"at once"))
    assert made.session.received == b"at once"


async def test_paused_session_gets_the_rest_after_the_pause(made):
    made.session.pause = True
    first, second = (made.client.encrypted(data) for data in (b"first", b"second"))
    assert made.give(first) == b""
    assert made.give(second) == second
    made.transport.buffer_updated(fill(made.transport, second))  # a transport may read once more
    assert made.session.received == b"first"
    assert made.transport.get_read_buffer_size() == len(second)
    made.transport.resume_reading()
    assert made.session.received == b"first"  # not within the call
    await asyncio.sleep(0)
    assert made.session.received == b"firstsecond"
    assert not made.below.reading
    made.transport.resume_reading()
    assert made.below.reading


def fill(transport, data):
    transport.get_buffer(-1)[: len(data)] = data
    return len(data)


def test_end_of_the_client_closes_the_connection(made):
    made.give(made.client.encrypted(b"last") + made.client.step(made.client.tls.unwrap))
    assert made.session.received == b"last"
    assert made.session.seen[2:] == ["eof_received"]
    assert made.below.closed == "closed"
    made.take()
    assert made.client.read() == [None]
    made.transport.connection_lost(None)
    assert made.session.seen[2:] == ["eof_received", "connection_lost"]


async def test_end_of_a_paused_client_waits_for_the_rest_of_its_bytes(made):
    """Else the session would drop the requests that it holds during a mute: acks=0 producers close without waiting."""
    made.session.pause = True
    made.give(made.client.encrypted(b"held") + made.client.step(made.client.tls.unwrap))
    assert made.session.received == b"held"
    assert made.session.seen[2:] == []
    assert made.below.closed is None
    made.transport.resume_reading()
    await asyncio.sleep(0)  # the next turn of the event loop
    assert made.session.seen[2:] == ["eof_received"]
    assert made.below.closed == "closed"


def test_session_learns_that_the_peer_has_closed(made):
    made.session.peer_closed = lambda: made.session.seen.append("peer_closed")
    made.transport.peer_closed()
    assert made.session.seen[2:] == ["peer_closed"]


def test_end_without_close_notify_closes_the_connection(made):
    assert not made.transport.eof_received()
    assert made.session.seen[2:] == ["eof_received"]
    assert made.below.closed == "closed"


async def test_close_waits_for_the_client(made):
    """Else unread bytes would reset the connection, and the reset overtake the last response."""
    made.session.pause = True
    made.give(made.client.encrypted(b"first"))
    made.transport.write(b"response")
    made.transport.close()
    assert made.transport.is_closing()
    assert made.below.reading
    assert made.below.closed is None
    made.take()
    assert made.client.read() == [b"response", None]
    made.give(made.client.encrypted(b"more"))
    assert made.session.received == b"first"
    assert not made.transport.eof_received()  # the transport below closes then
    made.transport.connection_lost(None)
    assert made.session.seen[2:] == ["connection_lost"]


async def test_client_that_does_not_close_is_aborted(made, monkeypatch):
    monkeypatch.setattr(module, "SHUTDOWN_SECONDS", 0.0)
    made.transport.close()
    assert made.below.closed is None
    await made.below.ended.wait()
    assert made.below.closed == "aborted"
    made.transport.connection_lost(None)


async def test_second_close_waits_no_more(made):
    made.transport.close()
    made.transport.close()
    assert made.below.closed == "closed"
    made.transport.connection_lost(None)


async def test_requests_are_read_after_write_eof(made):
    made.transport.write(b"response")
    made.transport.write_eof()
    made.transport.write(b"too late")
    made.take()
    assert made.client.read() == [b"response", None]
    made.give(made.client.encrypted(b"acks=0"))
    assert made.session.received == b"acks=0"
    made.give(made.client.step(made.client.tls.unwrap))
    assert made.session.seen[2:] == ["eof_received"]
    assert made.below.closed == "closed"


async def test_write_eof_passes_on_what_came_before(made):
    made.session.pause = True
    made.give(made.client.encrypted(b"first"))
    made.transport.buffer_updated(fill(made.transport, made.client.encrypted(b"second")))
    made.transport.write_eof()
    made.take()
    assert made.client.read() == [None]
    assert made.session.received == b"firstsecond"


def test_damaged_record_ends_the_connection_with_an_alert(made):
    damaged = bytearray(made.client.encrypted(b"request"))
    damaged[-1] ^= 1
    made.give(damaged)
    assert made.session.received == b""
    assert made.below.closed == "closed"
    made.take()
    with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
        made.client.read()
    made.transport.connection_lost(None)
    assert str(made.session.error).startswith("its TLS is invalid: [SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC]")


def test_records_before_a_damaged_one_are_passed_on(made):
    good, damaged = made.client.encrypted(b"good"), bytearray(made.client.encrypted(b"bad"))
    damaged[-1] ^= 1
    made.give(good + damaged)
    assert made.session.received == b"good"
    assert made.below.closed == "closed"


def test_server_name_that_is_not_ascii_is_ignored(authority):
    """Python would print a traceback for it, which fails this test as a warning."""
    made = Connection(authority)
    hello = made.client.step(made.client.tls.do_handshake)
    assert b"localhost" in hello
    made.give(hello.replace(b"localhost", b"localhos\xff"))
    assert made.session.seen == []
    assert made.below.sent


def test_failed_handshake_sends_an_alert(authority):
    made = Connection(authority, maximum_version=ssl.TLSVersion.TLSv1_2)
    made.client.tls.context.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256")  # the gateway has no RSA certificate
    client = Client(made.client.tls.context)
    made.give(client.step(client.tls.do_handshake))
    assert made.session.seen == ["NO_SHARED_CIPHER"]
    assert made.below.closed == "closed"
    client.incoming.write(b"".join(made.below.sent))
    with pytest.raises(ssl.SSLError, match="ALERT_HANDSHAKE_FAILURE"):
        client.tls.do_handshake()
    made.transport.connection_lost(None)
    assert made.session.seen == ["NO_SHARED_CIPHER", "handshake lost"]


def test_endless_replies_of_openssl_end_the_connection(made):
    """A client may ask for new keys again and again, and neither send a request nor read."""
    made.transport._outgoing.write(bytes(MAX_REPLY_BYTES + 1))  # in place of OpenSSL's replies: Python can't ask for new keys
    made.give(made.client.encrypted(b"request"))
    assert made.session.received == b"request"
    assert made.below.closed == "closed"
    made.transport.connection_lost(None)
    assert made.session.error.reason == "tls"


def test_tickets_with_a_large_certificate_are_no_replies(authority):
    names = [f"host-{number:05}.some-department.example.com" for number in range(200)]
    made = Connection(authority, mine=authority.issue("client", names)).shake_hands()
    assert made.transport._outgoing.pending > MAX_REPLY_BYTES
    made.give(made.client.encrypted(b"request"))
    assert made.session.received == b"request"
    assert made.below.closed is None


def test_bytes_without_content_end_the_connection(made):
    """OpenSSL needs long for changes of keys, and answers only some of them."""
    made.transport._records._surplus = MAX_SURPLUS_BYTES  # in place of those changes: Python can't make them
    made.give(made.client.encrypted(b"request")[:10])
    assert made.below.closed == "closed"


def numbers(count):
    return [b"%d," % number for number in range(count)]


def give_records(made, count):
    """In one read."""
    assert not made.give(b"".join(map(made.client.encrypted, numbers(count))))


async def test_many_records_take_several_turns(made):
    """They may be changes of keys, which take OpenSSL long."""
    give_records(made, 3 * MAX_RECORDS)
    for turn in (1, 2, 3):
        assert made.session.received == b"".join(numbers(turn * MAX_RECORDS))
        assert (made.transport.get_read_buffer_size() > 0, made.below.reading) == (turn < 3, turn == 3)
        await asyncio.sleep(0)
    assert made.below.reading


async def test_waiting_records_wait_for_a_session_that_does_not_read(made):
    give_records(made, 2 * MAX_RECORDS)
    made.transport.pause_reading()
    await asyncio.sleep(0)
    assert made.session.received == b"".join(numbers(MAX_RECORDS))
    made.transport.resume_reading()
    assert not made.below.reading
    await asyncio.sleep(0)
    assert made.session.received == b"".join(numbers(2 * MAX_RECORDS))
    assert made.below.reading


async def test_half_close_passes_on_waiting_records_first(made):
    give_records(made, 3 * MAX_RECORDS)
    made.transport.write_eof()
    assert made.session.received == b"".join(numbers(3 * MAX_RECORDS))
    await asyncio.sleep(0)
    made.give(made.client.encrypted(b"more"))
    assert made.session.received.endswith(b",more")


def test_small_records_leave_reads_large(made):
    made.give(made.client.encrypted(b"heartbeat of a consumer's group"))
    assert len(made.transport.get_buffer(-1)) == READ_BYTES


def test_records_of_one_byte_are_read(made):
    for _ in range(MAX_SURPLUS_BYTES // 16):
        made.give(made.client.encrypted(b"x"))
    assert len(made.session.received) == MAX_SURPLUS_BYTES // 16


def test_refused_renegotiation_ends_the_connection(authority):
    made = Connection(authority, maximum_version=ssl.TLSVersion.TLSv1_2).shake_hands()
    made.transport._outgoing.write(b"alert")
    made.give(made.client.encrypted(b"request"))
    assert made.below.closed == "closed"
    assert made.below.sent == [b"alert"]


@pytest.mark.parametrize("end", ["close", "abort"])
def test_connection_that_is_given_up_at_once_is_aborted(authority, end):
    """It is accepted, but its transport not made yet."""
    made = Connection(authority)
    transport, below = TlsTransport(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), made.session), Below()
    getattr(transport, end)()
    transport.connection_made(below)
    assert below.closed == "aborted"
    transport.connection_lost(None)
    transport.connection_lost(None)
    assert made.session.seen == ["handshake lost"]


def test_methods_have_no_effect_after_the_end(made):
    made.transport.connection_lost(None)
    for method in ("pause_reading", "resume_reading", "write_eof", "close", "abort"):
        getattr(made.transport, method)()
    made.transport.write(b"late")
    made.transport.set_write_buffer_limits(1)
    assert made.transport.get_write_buffer_size() == 0
    assert made.transport.get_extra_info("ssl_object") is None
    assert made.session.seen[2:] == ["connection_lost"]


@pytest.mark.parametrize("end", ["damaged record", "end of the client"])
async def test_client_that_reads_no_more_is_aborted(made, monkeypatch, end):
    monkeypatch.setattr(module, "SHUTDOWN_SECONDS", 0.0)
    made.below.unsent = 1
    if end == "damaged record":
        damaged = bytearray(made.client.encrypted(b"request"))
        damaged[-1] ^= 1
        made.give(damaged)
    else:
        made.transport.eof_received()
    assert made.below.closed == "closed"
    await made.below.ended.wait()
    made.transport.connection_lost(None)


def test_openssl_keeps_little_memory_for_a_large_response(made):
    """Its memory for a connection keeps the size of the largest write."""
    made.transport.write(LARGE)
    assert max(map(len, made.below.sent)) < READ_BYTES + 20_000
