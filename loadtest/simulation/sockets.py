"""TCP sockets of the simulated network: ordered bytes in both directions, with delays, splits, cuts and bounded windows.

A socket that is closed with unread bytes resets its connection, as in the kernel.
"""

import random
import socket as real
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from loadtest.simulation.network import Network
    from loadtest.simulation.virtual_loop import Process

WINDOW: Final = 96 * 1024
"""The bytes of one direction that are on their way or unread: the kernel's buffers on both sides."""

MAX_READ: Final = 64 * 1024
"""The longest chunk of one read."""

_INFO_BYTES: Final = 256
UNACKED: Final = 8 + 4 * 4
_STATE: Final = 0
_LAST_DATA_RECV: Final = 8 + 11 * 4
_BYTES_ACKED: Final = 8 + 24 * 4 + 2 * 8
_FIN: Final = b""
_MAX_PIECES: Final = 4


def tcp_info(level: int, option: int, size: int, fields: dict[int, bytes]) -> bytes:
    """`struct tcp_info`, as far as `gateway.proxy.tcp_info` reads it: fields by their offset."""
    assert (level, option) == (real.IPPROTO_TCP, real.TCP_INFO)
    info = bytearray(_INFO_BYTES)
    for offset, field in fields.items():
        info[offset : offset + len(field)] = field
    return bytes(info[:size])


class Line:
    """The delays of one connection, from a seed of its own: other connections do not change its course."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.latency = self.random.choice((0.0002, 0.001, 0.005, 0.02))
        self.splits = self.random.choice((0.0, 0.1, 0.5))
        self.grain = self.random.choice((0.0, 0.0, 0.01))
        """Bytes arrive at multiples of this time, so that several segments arrive as one chunk."""

    def delay(self) -> float:
        return self.latency * (0.5 + self.random.random())

    def pieces(self, data: bytes) -> list[bytes]:
        if len(data) < _MAX_PIECES or self.random.random() >= self.splits:
            return [data]
        cuts = sorted({self.random.randrange(1, len(data)) for _ in range(self.random.randrange(1, _MAX_PIECES))})
        return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


class SimulatedSocket:
    """One end of a connection, with the methods of `socket.socket` that gateways use."""

    def __init__(
        self, network: "Network", number: int, process: "Process | None", address: tuple[str, int], line: Line
    ) -> None:
        self.network = network
        self.number = number
        self.process = process
        self.address = address
        self.line = line
        self.peer: SimulatedSocket
        self.received: deque[bytes] = deque()
        self.received_bytes = 0
        self.received_total = 0
        self.sent_total = 0
        self.unread = 0  # bytes that this end has sent and the other end has not read
        self.fin = False
        self.was_reset = False
        self.was_cut = False  # by a fault of the plan
        self.closed = False
        self.write_closed = False
        self.on_event: Callable[[], None] | None = None  # bytes, the peer's end, a reset, or room to write
        self._arriving: deque[tuple[float, bytes | None]] = deque()  # None: a reset
        self._last_arrival = 0.0
        self._last_data = network.now()

    def fileno(self) -> int:
        return -1 if self.closed else self.number

    def setblocking(self, _: bool) -> None:
        """The simulation never blocks."""

    def setsockopt(self, *_: object) -> None:
        """Options change nothing here."""

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """`struct tcp_info` with the fields of a connection."""
        silence = round((self.network.now() - self._last_data) * 1000)
        acked_and_received = (self.sent_total - self.unread, self.received_total)
        return tcp_info(
            level,
            option,
            size,
            {
                _STATE: b"\x08" if self.fin else b"\x01",  # TCP_CLOSE_WAIT, TCP_ESTABLISHED
                _LAST_DATA_RECV: silence.to_bytes(4, sys.byteorder),
                _BYTES_ACKED: b"".join(number.to_bytes(8, sys.byteorder) for number in acked_and_received),
            },
        )

    # Sending.

    @property
    def room(self) -> int:
        return WINDOW - self.unread

    def send(self, data: bytes) -> None:
        """Send bytes for which there is `room`."""
        if self.closed or self.write_closed or self.was_reset:
            return
        self.unread += len(data)
        self.sent_total += len(data)
        for piece in self.line.pieces(data):
            self.peer._arrives(piece)

    def shutdown_write(self) -> None:
        if not (self.closed or self.write_closed or self.was_reset):
            self.write_closed = True
            self.peer._arrives(_FIN)

    def close(self) -> None:
        """Close both directions. Unread bytes cause a reset."""
        if self.closed:
            return
        if self.received_bytes:
            self.reset()
            return
        self.shutdown_write()
        self.closed = True
        self.network.forget(self)

    def reset(self) -> None:
        if self.closed:
            return
        if not self.was_reset:
            self.peer._arrives(None)
        self.closed = True
        self.received.clear()
        self.received_bytes = 0
        self.network.forget(self)

    # Receiving.

    def _arrives(self, data: bytes | None) -> None:
        """Called by the peer at the time of sending."""
        now, line = self.network.now(), self.line
        when = now + line.delay() + self.network.more_delay(self)
        if line.grain:
            when = (int(when / line.grain) + 1) * line.grain
        self._last_arrival = when = max(when, self._last_arrival)
        self._arriving.append((when, data))
        if len(self._arriving) == 1:
            self.network.at(when, self._deliver)

    def _deliver(self) -> None:
        now = self.network.now()
        while self._arriving and self._arriving[0][0] <= now:
            data = self._arriving.popleft()[1]
            if data is None:
                self._take_reset()
            elif self.closed:
                if data:
                    self.network.at(now + self.line.delay(), self.peer._take_reset)
            elif data is _FIN:
                self.network.note(self, data)
                self.fin = True
            else:
                self.network.note(self, data)
                self._last_data = now
                self.received.append(data)
                self.received_bytes += len(data)
                self.received_total += len(data)
        if self._arriving:
            self.network.at(self._arriving[0][0], self._deliver)
        self._notify()

    def _take_reset(self) -> None:
        if not self.was_reset:
            self.was_reset = True
            self.received.clear()
            self.received_bytes = 0
            self.network.note(self, None)
            self._notify()

    def _notify(self) -> None:
        if self.on_event is not None and not self.closed:
            if self.process is None:
                self.on_event()
            elif self.process.alive:
                self.process.run(self.on_event)

    def cut(self) -> None:
        """The connection is lost at both ends."""
        for end in (self, self.peer):
            end.was_cut = True
            self.network.at(self.network.now() + end.line.delay(), end._take_reset)

    @property
    def readable(self) -> bool:
        """True if `recv` would return or raise something other than `BlockingIOError`."""
        return bool(self.received_bytes) or self.fin or self.was_reset

    def recv(self, most: int, flags: int = 0) -> bytes:
        """As `socket.recv`, with MSG_PEEK as the only flag. Raises `ConnectionResetError` or `BlockingIOError`."""
        if self.was_reset:
            raise ConnectionResetError(104, "Connection reset by peer")
        if self.received_bytes:
            return b"".join(self.received)[:most] if flags & real.MSG_PEEK else self.read(most)
        if self.fin:
            return b""
        raise BlockingIOError

    def read(self, most: int = MAX_READ) -> bytes:
        """At most `most` bytes."""
        if self.received_bytes <= most:
            chunk = self.received[0] if len(self.received) == 1 else b"".join(self.received)
            self.received.clear()
        else:
            whole = b"".join(self.received)
            chunk = whole[:most]
            self.received = deque([whole[most:]])
        self.received_bytes -= len(chunk)
        peer = self.peer
        full = peer.room <= 0
        peer.unread -= len(chunk)
        if full:
            self.network.at(self.network.now() + self.line.delay(), peer._notify)
        return chunk
