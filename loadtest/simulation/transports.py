"""asyncio transports over simulated sockets: write buffers, pauses, half-closes."""

import asyncio
from typing import Any, Protocol, cast

from gateway.proxy.large_requests import LargeRequestReader
from gateway.proxy.socket_transport import notify_of_close
from loadtest.simulation.sockets import MAX_READ, SimulatedSocket

HIGH_WATER = 64 * 1024


class Tap(Protocol):
    """Sees the bytes that a gateway writes to a broker, and reads from it."""

    connected: bool
    broken: bool  # the broker or the network has ended the connection

    def wrote(self, data: bytes) -> None: ...

    def read(self, data: bytes) -> None: ...


class SimulatedTransport(asyncio.Transport):
    """Owns its socket. `most_buffered` is the largest number of bytes that waited for a slow peer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: SimulatedSocket, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._loop = loop
        self.connection = connection
        self._protocol = cast("asyncio.Protocol", protocol)
        self._buffer = bytearray()
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4
        self.paused = False
        self.writing_paused = False
        self._closing = False
        self._eof = False
        self._eof_received = False
        self._notified = False
        self.lost = False
        self.tap: Tap | None = None
        self.most_buffered = 0
        connection.on_event = self._on_event

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return self.connection
        return self.connection.peer.address if name == "peername" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)

    # Reading.

    def pause_reading(self) -> None:
        self.paused = True
        if self.connection.fin and not self._notified:
            self._loop.call_soon(self._on_event)

    def resume_reading(self) -> None:
        if self.paused:
            self.paused = False
            self._loop.call_soon(self._on_event)

    def start(self) -> None:
        """Read what has arrived before the transport was there."""
        self._loop.call_soon(self._on_event)

    def _on_event(self) -> None:
        connection = self.connection
        if connection.was_reset:
            self._note_broken()
            self._lose(ConnectionResetError("Connection reset by peer"))
            return
        if self._buffer:
            self._flush()
        while connection.received and not self.paused and not self._closing:
            self._read()
        if connection.fin and not connection.received and not self.paused and not self._closing and not self._eof_received:
            self._eof_received = True
            self._note_broken()
            if not self._protocol.eof_received():
                self.close()
        if connection.fin and self.paused and not self._closing and not self._notified:
            self._notified = True
            notify_of_close(self._protocol)

    def _read(self) -> None:
        protocol = self._protocol
        if isinstance(protocol, LargeRequestReader):  # only clients have it, and only brokers have a tap
            buffer = protocol.get_buffer(-1)
            chunk = self.connection.read(min(len(buffer), MAX_READ))
            buffer[: len(chunk)] = chunk
            protocol.buffer_updated(len(chunk))
            return
        chunk = self.connection.read()
        if self.tap is not None:
            self.tap.read(chunk)
        protocol.data_received(chunk)

    def _note_broken(self) -> None:
        if self.tap is not None and not self._closing:
            self.tap.broken = True

    # Writing.

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        sent = bytes(data)
        if self.tap is not None:
            self.tap.wrote(sent)  # even if the connection is just being lost: then these bytes are lost on their way
        if self._closing or self.lost or self._eof or not sent:
            return
        if not self._buffer:
            room = self.connection.room
            if len(sent) <= room:
                self.connection.send(sent)
                return
            if room > 0:
                self.connection.send(sent[:room])
                sent = sent[room:]
        self._buffer += sent
        self.most_buffered = max(self.most_buffered, len(self._buffer))
        if len(self._buffer) > self._high and not self.writing_paused:
            self.writing_paused = True
            self._protocol.pause_writing()

    def _flush(self) -> None:
        room = self.connection.room
        if room <= 0:
            return
        self.connection.send(bytes(self._buffer[:room]))
        del self._buffer[:room]
        if self.writing_paused and len(self._buffer) <= self._low:
            self.writing_paused = False
            self._protocol.resume_writing()
        if not self._buffer:
            if self._closing:
                self._lose(None)
            elif self._eof:
                self.connection.shutdown_write()

    def write_eof(self) -> None:
        if not self._eof and not self._closing:
            self._eof = True
            if not self._buffer:
                self.connection.shutdown_write()

    # The end.

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._buffer:
                self._lose(None)

    def abort(self) -> None:
        self._buffer.clear()
        if not self.lost:
            self.connection.reset()
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        self._closing = True
        self._buffer.clear()
        if not self.lost:
            self.lost = True
            self._loop.call_soon(self._end, error)

    def _end(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self.connection.close()
