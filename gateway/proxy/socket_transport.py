"""An asyncio transport of Weir's own, for the sockets of sessions."""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from gateway import open_files
from gateway.proxy.poller import PEER_CLOSED, READ, WRITE, PolledSocket, Poller
from gateway.proxy.socket_memory import BUFFER_BYTES, CROWDED_READ_BYTES, READ_BYTES
from gateway.proxy.wire import ChunkReader, Data

HIGH_WATER: Final = 64 * 1024
"""asyncio's default for the bytes that may wait for a slow peer before the protocol is to pause."""

HAND_OVER_READS: Final = 32
"""After so many reads without a pause, the event loop itself watches the socket."""

_MAX_PIECES: Final = 64

_CONNECTING: Final = 0
_OPEN: Final = 1
_CLOSING: Final = 2  # the rest of the written bytes goes out first
_ENDED: Final = 3
_UNDER_WAY: Final = (errno.EINPROGRESS, errno.EALREADY, errno.EINTR)

_log = logging.getLogger("weir.session")

_recv: Final = socket.SocketType.recv
_recv_into: Final = socket.SocketType.recv_into
_send: Final = socket.SocketType.send  # shared by all sockets: no cache would hold a bound method of each

_buffer: Final = memoryview(bytearray(BUFFER_BYTES))
"""Sockets with many bytes are read into it. The bytes are copied before the next read."""

_known: Final[dict[type, tuple[bool, bool]]] = {}
"""The results of `_abilities`, for each class of protocols."""


class SocketTransport(PolledSocket):
    """Owns its socket, and calls its protocol as asyncio's transports do. `connection_lost` closes the socket.

    It is no `asyncio.Transport`, because mypyc compiles it. A protocol with a method `get_buffer` is a buffered one here.
    """

    __deletable__ = ("_get_buffer", "_protocol", "_reader", "_received")
    __slots__ = (
        "_address", "_connection", "_error", "_full", "_get_buffer", "_high", "_low", "_memory", "_notifies", "_pending",
        "_pending_bytes", "_poller", "_protocol", "_read_ended", "_reader", "_reading", "_reads", "_received", "_state",
        "_write_ended", "_writing_paused",
    )  # fmt: skip

    def __init__(self, poller: Poller, connection: socket.SocketType, protocol: asyncio.BaseProtocol) -> None:
        """`connection` must not block. The caller calls `serve` or `connect` next."""
        super().__init__(connection.fileno())
        # mypyc stores attributes in this order: those of the hot path come first (docs/decisions/040-cache-lines.md).
        self._connection = connection
        self._reader: ChunkReader | None = None
        self._get_buffer: Callable[[int], memoryview] | None = None
        self._memory = poller.memory
        self._pending_bytes = 0
        self._reads = 0
        self._state = _OPEN
        self._full = False
        self._write_ended = False
        self._received: Callable[[Any], None] | None = None
        self._poller = poller
        self._address = ("", 0)
        self._reading = True
        self._read_ended = False
        self._writing_paused = False
        self._pending: list[Data] = []  # an empty deque would take 600 bytes for each connection
        self._high = HIGH_WATER
        self._low = HIGH_WATER // 4
        self._error: Exception | None = None
        self.set_protocol(protocol)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Call this protocol from now on, without `connection_made`."""
        self._protocol = cast("asyncio.Protocol", protocol)
        buffered, self._notifies = _abilities(type(protocol))  # until the protocol is notified
        self._reader = self._get_buffer = self._received = None
        if buffered:
            reader: Any = protocol
            self._get_buffer, self._received = reader.get_buffer, reader.buffer_updated
        elif isinstance(protocol, ChunkReader):
            self._reader = protocol
        else:
            self._received = self._protocol.data_received

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: object = None) -> object:
        """The names are `socket` and `peer_closed`: True after the call of the protocol's method of that name."""
        if name == "peer_closed":
            return not self._notifies
        return self._connection if name == "socket" else default

    # The beginning.

    def serve(self) -> None:
        """Begin with a socket that is connected: an accepted one."""
        self._state = _OPEN
        try:
            self._protocol.connection_made(cast("asyncio.Transport", self))
        except Exception as error:
            self._crash(error)
        self._watch()

    def connect(self, address: tuple[str, int]) -> None:
        """Connect the socket to an IP address. Raises OSError if that fails at once.

        A peer on this machine is connected at once. If it fails later, the protocol gets `connection_lost` alone.
        """
        self._state = _CONNECTING
        self._address = address
        problem = self._connection.connect_ex(address)
        if problem in _UNDER_WAY:
            problem = self._connection.connect_ex(address)  # Linux returns the result, if the peer has accepted by now
        if problem in _UNDER_WAY:
            self._poller.watch(self, WRITE)
        elif problem and problem != errno.EISCONN:
            raise OSError(problem, os.strerror(problem))
        else:
            self.serve()

    @property
    def connecting(self) -> bool:
        return self._state == _CONNECTING

    def _go_on_connecting(self) -> None:
        problem = self._connection.connect_ex(self._address)
        if problem in _UNDER_WAY:
            return
        if problem and problem != errno.EISCONN:
            self.fail(OSError(problem, os.strerror(problem)))
        else:
            self.serve()

    # Reading.

    def pause_reading(self) -> None:
        self._reading = False
        self._watch()

    def resume_reading(self) -> None:
        self._reading = True
        self._watch()

    def is_reading(self) -> bool:
        return self._reading and self._state == _OPEN

    def _watch(self) -> None:
        """Wait for the events that matter now."""
        if self._state == _CONNECTING or self._state == _ENDED:
            return
        events = WRITE if self._pending else 0
        if self._state == _OPEN and not self._read_ended:
            if self._reading:
                events |= READ
            elif self._notifies:
                events |= PEER_CLOSED
        if events != self.events:
            self._reads = 0
            try:
                self._poller.watch(self, events)
            except (OSError, ValueError) as error:  # a protocol expects no error here; ValueError: the poller is closed
                self.fail(error)

    def ready(self, events: int) -> None:
        try:
            if self._state == _CONNECTING:
                self._go_on_connecting()
                return
            # An error or the end of the connection is seen by the call that it makes fail.
            if self.events & READ and events & ~WRITE:
                self._read()
            elif self.events & PEER_CLOSED and events & ~(READ | WRITE):  # READ: from before a pause in this look at the epoll
                self._notifies = False
                self._watch()
                notify_of_close(self._protocol)
            if self.events & WRITE and events & ~READ:
                self._flush()
        except Exception as error:
            self._crash(error)

    def readable(self) -> None:
        try:
            self._read()
        except Exception as error:
            self._crash(error)

    def _read(self) -> None:
        get_buffer = self._get_buffer
        data = b""
        try:
            if get_buffer is not None:
                buffer = get_buffer(-1)
                count = _recv_into(self._connection, buffer[:CROWDED_READ_BYTES] if self._memory.crowded else buffer)
            elif self._full:
                count = _recv_into(self._connection, _buffer)
                data = bytes(_buffer[:count])
            else:
                data = _recv(self._connection, CROWDED_READ_BYTES if self._memory.crowded else READ_BYTES)
                count = len(data)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.fail(error)
            return
        self._full = count >= READ_BYTES
        if not count:
            self._end_reading()
        elif self._reader is not None:
            self._reader.data_received(data)
        elif self._received is not None:
            self._received(data if get_buffer is None else count)
        self._reads += 1
        if self._reads == HAND_OVER_READS and self.events == READ:
            self._poller.hand_over(self)

    def _end_reading(self) -> None:
        self._read_ended = True
        if self._protocol.eof_received():
            self._watch()
        else:
            self.close()

    # Writing.

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._pending_bytes

    def write(self, data: Data) -> None:
        """Send the bytes at once, as far as the kernel takes them. It may refer to the others until they are sent."""
        if self._state == _ENDED or self._state == _CLOSING or self._write_ended:
            return
        size = len(data)
        if not self._pending_bytes and self._state == _OPEN:
            try:
                sent = _send(self._connection, data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self.fail(error)
                return
            if sent == size:
                return
            if sent:
                data = memoryview(data)[sent:]
                size -= sent
        elif not size:
            return
        self._pending.append(self._memory.keep(data))
        self._pending_bytes += size
        self._watch()
        if not self._writing_paused and (self._pending_bytes > self._high or self._memory.crowded):
            self._writing_paused = True
            self._protocol.pause_writing()

    def _flush(self) -> None:
        pending = self._pending
        try:
            sent = self._connection.sendmsg(pending[:_MAX_PIECES])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.fail(error)
            return
        self._pending_bytes -= sent
        whole = 0
        while sent:
            piece = pending[whole]
            if sent < len(piece):
                pending[whole] = memoryview(piece)[sent:]
                break
            sent -= len(piece)
            whole += 1
        self._memory.release(pending[:whole])
        del pending[:whole]
        if self._writing_paused and self._pending_bytes <= (0 if self._memory.crowded else self._low):
            self._writing_paused = False
            self._protocol.resume_writing()
        if not pending:
            if self._state == _CLOSING:
                self._end(None)
            elif self._write_ended:
                self._shut_down()
            self._watch()

    def write_eof(self) -> None:
        """Half-close the connection after the bytes that are written."""
        if self._write_ended or self._state == _ENDED or self._state == _CLOSING:
            return
        self._write_ended = True
        if not self._pending:
            self._shut_down()

    def _shut_down(self) -> None:
        try:
            self._connection.shutdown(socket.SHUT_WR)
        except OSError as error:  # the peer has reset the connection
            self.fail(error)

    # The end.

    def is_closing(self) -> bool:
        return self._state == _CLOSING or self._state == _ENDED

    def close(self) -> None:
        """Read no more, and close the socket after the bytes that are written."""
        if self._state == _CLOSING:
            return
        if self._pending and self._state == _OPEN:
            self._state = _CLOSING
            self._watch()
        else:
            self._end(None)

    def abort(self) -> None:
        """Close the socket soon. Bytes that wait to be written are lost."""
        self._end(None)

    def fail(self, error: Exception) -> None:
        """As `abort`. The protocol gets the error."""
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self._state == _ENDED:
            return
        self._state = _ENDED
        self._error = error
        self._memory.release(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._poller.end(self)

    def _crash(self, error: Exception) -> None:
        """A protocol must not raise. If it does, its connection ends, and no other one."""
        _log_bug(error)
        self.fail(error)

    def finish(self) -> None:
        protocol = self._protocol
        # Without these references, the objects of a connection are freed at once, and not by the garbage collector.
        del self._protocol, self._reader, self._received, self._get_buffer
        try:
            protocol.connection_lost(self._error)
        except Exception as error:
            _log_bug(error)
        self._connection.close()


def _log_bug(error: Exception) -> None:
    _log.error("connection closed, for a bug of Weir's", exc_info=error, extra={"reason": "internal"})


def _abilities(protocol: type) -> tuple[bool, bool]:
    """True for `get_buffer` and for `peer_closed`, if a class of protocols has it. Lookups that fail would take 2 us each."""
    known = _known.get(protocol)
    if known is None:
        known = _known[protocol] = hasattr(protocol, "get_buffer"), hasattr(protocol, "peer_closed")
    return known


def notify_of_close(protocol: asyncio.BaseProtocol) -> None:
    """Call a protocol's `peer_closed`, if it has this method: the peer has closed its side, and its last bytes are not read."""
    notify: Callable[[], None] | None = getattr(protocol, "peer_closed", None)
    if notify is not None:
        notify()


def is_own(transport: object) -> bool:
    """True for a `SocketTransport`."""
    return isinstance(transport, SocketTransport)


def dial(poller: Poller, address: tuple[str, int], protocol: asyncio.BaseProtocol) -> SocketTransport:
    """Begin to connect to an IP address, as `SocketTransport.connect` does. Raises OSError if that fails at once."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    # Python's own class around `SocketType` would cost as much again.
    connection = socket.SocketType(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        if connection.fileno() >= open_files.first_beyond_brokers():
            raise open_files.too_many()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = SocketTransport(poller, connection, protocol)
        transport.connect(address)
    except OSError:
        connection.close()
        raise
    return transport
