"""TLS with a client or a broker, between the transport of its bytes and its session."""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from gateway.proxy.socket_memory import BUFFER_BYTES, READ_BYTES
from gateway.proxy.socket_transport import notify_of_close
from gateway.proxy.tls.broker_handshake import Handshake
from gateway.proxy.tls.tls_records import MAX_REPLY_BYTES, PIECE_BYTES, RECORD_BYTES, RecordCounter
from gateway.proxy.wire import ChunkWriter, Data
from protocol.errors import ProtocolError

HANDSHAKE_BYTES: Final = 8 * 1024
"""The most bytes of a read before the end of the handshake."""

SHUTDOWN_SECONDS: float = 5.0
"""The time for the peer to close its side after the gateway has."""

_buffer: Final = memoryview(bytearray(BUFFER_BYTES))
"""The bytes of the last read, of any connection. OpenSSL gets them before the next read."""

# OpenSSL gets or returns no more than `READ_BYTES` at once either: its memory for a connection keeps its size.
_FIRST: Final = _buffer[:READ_BYTES]
_HANDSHAKE: Final = _buffer[:HANDSHAKE_BYTES]

_SHAKING_HANDS: Final = 0
_OPEN: Final = 1
_CLOSING: Final = 2  # the transport below still sends; what it reads is dropped
_LOST: Final = 3


class TlsTransport(ChunkWriter):
    """Two things at once: the protocol of the transport below, and the transport of the session.

    A session begins after the handshake, with `connection_made`. Its protocol must not be a buffered one. Its
    `connection_lost` gets a `ProtocolError` with the reason `tls` if OpenSSL cannot go on with the peer's bytes.
    With the host of a `broker`, the gateway is the client of this TLS.
    """

    __deletable__ = ("_object", "_protocol", "_read", "_received", "_write")
    __slots__ = (
        "_below", "_broker", "_ended", "_error", "_handshake", "_incoming", "_max_replies", "_object", "_outgoing",
        "_protocol", "_read", "_reading", "_received", "_records", "_room", "_state", "_timer", "_waiting", "_write",
        "_write_ended",
    )  # fmt: skip

    def __init__(self, context: ssl.SSLContext, handshake: Handshake, broker: str | None = None) -> None:
        self._below: asyncio.Transport | None = None
        self._error: Exception | None = None
        self._handshake: Handshake | None = handshake
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._broker = broker
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=broker is None, server_hostname=broker)
        # `SSLObject` passes each call on to this object, which costs a frame of Python.
        inner = getattr(self._object, "_sslobj", self._object)
        self._read: Callable[[int], bytes] = inner.read
        self._write: Callable[[Data], int] = inner.write
        self._state = _SHAKING_HANDS
        self._reading = True
        self._room = _HANDSHAKE  # for the next read
        self._records = RecordCounter()
        self._waiting = b""  # bytes that have come, and that OpenSSL gets in a later turn
        self._ended = False  # the peer has sent close_notify, or closed its side
        self._max_replies = 0
        self._write_ended = False
        self._timer: asyncio.TimerHandle | None = None

    # The protocol of the transport below.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        below = cast("asyncio.Transport", transport)
        if self._state != _SHAKING_HANDS:  # it was given up since the accept
            below.abort()
            return
        self._below = below
        if self._broker is not None:
            self._shake_hands()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._room

    def buffer_updated(self, count: int) -> None:
        if self._state == _OPEN and self._reading and not self._waiting:
            self._decrypt(_buffer[:count])
        elif self._state == _OPEN:
            self._waiting += _buffer[:count]
        elif self._state == _SHAKING_HANDS:
            self._records.skip(_buffer[:count])
            self._incoming.write(_buffer[:count])
            self._shake_hands(_buffer[:count])

    def data_received(self, data: bytes) -> None:
        """Called in place of `buffer_updated` by event loops that know asyncio's own class of buffered protocols only."""
        for begin in range(0, len(data), BUFFER_BYTES):
            piece = data[begin : begin + BUFFER_BYTES]
            _buffer[: len(piece)] = piece
            self.buffer_updated(len(piece))

    def eof_received(self) -> bool:
        self._ended = True
        return self._state == _OPEN and self._peer_ended()

    def peer_closed(self) -> None:
        if self._state == _OPEN:
            notify_of_close(self._protocol)

    def pause_writing(self) -> None:
        if self._state == _OPEN:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._state == _OPEN:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._state == _LOST:
            return
        self._state = _LOST
        self._below = None
        if self._timer is not None:
            self._timer.cancel()
        # Without these references, the objects of a connection are freed at once, and not by the garbage collector.
        handshake, self._handshake = self._handshake, None
        problem, self._error = self._error or exc, None
        del self._object, self._read, self._write
        if handshake is not None:
            handshake.lost(problem)
            return
        protocol = self._protocol
        del self._protocol, self._received
        protocol.connection_lost(problem)

    # The handshake.

    def _shake_hands(self, received: Data = b"") -> None:
        handshake = self._handshake
        try:
            if handshake is not None:
                handshake.check(received, self._outgoing)
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            if handshake is not None:
                handshake.failed(error)
            self._fail(error)
            return
        # Under TLS 1.3, tickets for a client go out with the first response, and Weir's certificate with the first request.
        if self._object.version() == "TLSv1.3":
            self._max_replies = self._outgoing.pending + MAX_REPLY_BYTES  # tickets contain the client's certificate
        else:
            self._flush()
        if handshake is not None:
            self.set_protocol(handshake.finished())
        self._handshake = None
        self._room = _FIRST
        self._state = _OPEN
        self._protocol.connection_made(cast("asyncio.Transport", self))
        self._read_on()

    # Reading.

    def _decrypt(self, encrypted: memoryview) -> None:
        """Pass on the contents of the whole records that have come, `encrypted` included."""
        records: list[bytes] = []
        error: ssl.SSLError | None = None
        ended = False
        try:
            ended = self._read_records(encrypted, records)
        except ssl.SSLError as problem:
            error = problem
        content = records[0] if len(records) == 1 else b"".join(records)
        size = len(encrypted) - len(self._waiting)
        self._room = _buffer if size >= READ_BYTES else _FIRST
        endless = self._records.have_little_content(size, len(content)) or self._outgoing.pending > self._max_replies
        if content:
            self._received(content)
        if self._state == _OPEN:
            if error is not None:
                self._fail(error)
            elif ended:
                self._ended = True
                self._end_where_read()
            elif endless:
                self._fail("it updates its keys or asks for handshakes again and again")

    def _end_where_read(self) -> None:
        """Close the connection if the peer has ended it. A paused session still holds what came before, as with a FIN."""
        if self._ended and self._reading and self._state == _OPEN:
            self._peer_ended()

    def _peer_ended(self) -> bool:
        """Close the connection. True if the session still answers: it closes the connection later."""
        answers = bool(self._protocol.eof_received())
        if not answers and self._state == _OPEN:
            self._notify_of_close()
            self._close_below()
        return answers

    def _read_records(self, encrypted: memoryview, records: list[bytes]) -> bool:
        """Append the contents of the whole records. True if the peer has ended."""
        incoming, read, size, given = self._incoming, self._read, len(encrypted), 0
        while True:
            begin, given = given, self._records.end(encrypted, given)
            incoming.write(encrypted if given - begin == size else encrypted[begin:given])
            try:
                while incoming.pending:  # OpenSSL takes one record at a time from it
                    record = read(RECORD_BYTES)
                    if not record:
                        return True
                    records.append(record)
            except ssl.SSLWantReadError:  # for the rest of a record: OpenSSL has taken the first part from `incoming`
                pass
            except ssl.SSLZeroReturnError:  # raised in place of a read of 0 bytes if our close_notify is sent
                return True
            if given >= size:
                return False
            if given - begin < PIECE_BYTES:
                self._read_later(bytes(encrypted[given:]))
                return False

    def _read_later(self, encrypted: bytes) -> None:
        self._waiting = encrypted
        if self._below is not None:
            self._below.pause_reading()
        asyncio.get_running_loop().call_soon(self._read_on)

    def pause_reading(self) -> None:
        self._reading = False
        if self._below is not None and self._state == _OPEN:
            self._below.pause_reading()

    def resume_reading(self) -> None:
        self._reading = True
        if self._waiting or self._incoming.pending or self._ended:
            asyncio.get_running_loop().call_soon(self._read_on)  # a protocol expects no call from within this one
        elif self._below is not None:
            self._below.resume_reading()

    def _read_on(self) -> None:
        """Pass on what had come while the session did not read, or in an earlier turn."""
        if self._state == _OPEN and self._reading:
            self._decrypt_waiting()
        self._end_where_read()
        if self._below is not None and self._state == _OPEN and self._reading and not self._waiting:
            self._below.resume_reading()

    def _decrypt_waiting(self) -> None:
        if self._waiting or self._incoming.pending:
            waiting, self._waiting = self._waiting, b""
            self._decrypt(memoryview(waiting))

    def get_read_buffer_size(self) -> int:
        """The bytes that have come and are not decrypted."""
        return len(self._waiting) + self._incoming.pending

    # Writing.

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._below is not None:
            self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._below is None else self._below.get_write_buffer_size()

    def write(self, data: Data) -> None:
        size = len(data)
        if self._state != _OPEN or self._write_ended or not size:
            return
        try:
            if size <= RECORD_BYTES:
                self._write(data)
            else:
                rest = memoryview(data)
                sent = 0
                while sent < size:
                    sent += self._write(rest[sent : sent + RECORD_BYTES])
                    if self._outgoing.pending >= READ_BYTES:
                        self._flush()
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()

    def _flush(self) -> None:
        encrypted = self._outgoing.read()
        if encrypted and self._below is not None:
            self._below.write(encrypted)

    def write_eof(self) -> None:
        """Send close_notify after the bytes that are written. Reading goes on.

        No FIN follows: Python's TLS clients lose bytes that they have not read yet if one comes right behind close_notify.
        """
        if self._state != _OPEN or self._write_ended:
            return
        self._decrypt_waiting()
        while self._waiting and self._state == _OPEN:  # OpenSSL takes requests after its close_notify for an error
            self._decrypt_waiting()
        self._notify_of_close()
        self._write_ended = True

    def _notify_of_close(self) -> None:
        if self._state == _OPEN and not self._write_ended:
            with suppress(ssl.SSLError):  # OpenSSL would read the peer's close_notify next
                self._object.unwrap()
            self._flush()

    # The rest of a transport.

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)
        self._received: Callable[[bytes], None] = self._protocol.data_received

    def get_extra_info(self, name: str, default: object = None) -> object:
        if self._below is None:
            return default
        return self._object if name == "ssl_object" else self._below.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._state == _CLOSING or self._state == _LOST

    def close(self) -> None:
        """Pass on nothing more. Send close_notify after the bytes that are written, and wait for the peer to close.

        A second call closes the connection.
        """
        if self._state == _OPEN and not self._write_ended and not self._ended and self._below is not None:
            self._notify_of_close()
            self._state = _CLOSING
            if not self._below.is_closing():
                # The kernel resets a socket that is closed with unread bytes, and the reset may overtake the last bytes.
                self._below.resume_reading()
                self._limit_close(self._below)
        elif self._state != _LOST:
            self._notify_of_close()
            self._close_below()

    def abort(self) -> None:
        if self._state != _LOST:
            self._state = _CLOSING
            if self._below is not None:
                self._below.abort()

    def _fail(self, cause: ssl.SSLError | str) -> None:
        """Close the connection after OpenSSL's alert. The session's `connection_lost` gets the error."""
        self._error = ProtocolError("tls", f"its TLS is invalid: {cause}")
        self._error.__cause__ = None if isinstance(cause, str) else cause
        self._flush()
        self._close_below()

    def _close_below(self) -> None:
        """Close the connection after the bytes that are written, also if a client reads no more."""
        self._state = _CLOSING
        if self._below is not None:
            self._below.close()
            if self._below.get_write_buffer_size():
                self._limit_close(self._below)

    def _limit_close(self, below: asyncio.Transport) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SHUTDOWN_SECONDS, self._end_late, below)

    def _end_late(self, below: asyncio.Transport) -> None:
        """Abort the connection. A broker that reads slowly gets all bytes first, as without TLS, unless its TLS has failed."""
        self._timer = None
        if self._broker is not None and self._error is None and below.get_write_buffer_size():
            self._limit_close(below)
        else:
            below.abort()

    # The attempt to connect to a broker.

    def connect_over(self, below: asyncio.Transport) -> None:
        """The transport below is connecting to the broker."""
        self._below = below

    @property
    def connecting(self) -> bool:
        return self._state == _SHAKING_HANDS

    def fail(self, error: Exception) -> None:
        """As `abort`. The handshake gets the error."""
        self._error = error
        self.abort()


def is_tls(transport: object) -> bool:
    """True for a `TlsTransport`."""
    return isinstance(transport, TlsTransport)
