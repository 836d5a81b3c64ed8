"""The simulated network: listening sockets, connections, their transcript, and the violations that a run has found."""

import asyncio
import hashlib
import struct
import sys
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from loadtest.simulation.sockets import UNACKED, Line, SimulatedSocket, tcp_info
from loadtest.simulation.transports import SimulatedTransport, Tap
from loadtest.simulation.virtual_loop import PROCESS, WORLD, Process, VirtualLoop

Address = tuple[str, int]

OnDial = Callable[[Process, asyncio.Protocol], "Tap | None"]

_MARK = struct.Struct(">dIII")


class ListeningSocket:
    """A gateway's listening socket, with the methods that acceptors use."""

    def __init__(self, network: "Network", number: int, process: Process, address: Address) -> None:
        self._network = network
        self._number = number
        self.process = process
        self._address = address
        self.queue: deque[SimulatedSocket] = deque()
        self.closed = False

    def fileno(self) -> int:
        return -1 if self.closed else self._number

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """`struct tcp_info` with the length of the queue."""
        return tcp_info(level, option, size, {UNACKED: len(self.queue).to_bytes(4, sys.byteorder)})

    def accept(self) -> tuple[SimulatedSocket, Address]:
        if self.closed:
            raise OSError("closed")
        if not self.queue:
            raise BlockingIOError
        connection = self.queue.popleft()
        return connection, connection.peer.address

    def close(self) -> None:
        """Reset the connections that nobody has accepted."""
        if not self.closed:
            self.closed = True
            self._network.stop_listening(self._address, self)
            while self.queue:
                self.queue.popleft().reset()


class Network:
    """`transcript` hashes every delivery: two runs of one seed have the same one."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.seed = seed
        self.transcript = hashlib.blake2b(digest_size=16)
        self.log: list[str] | None = None
        self.slow: dict[str, float] = {}  # more delay (seconds) of the connections of a host
        self.on_dial: OnDial | None = None  # called when a process begins to connect
        self._numbers = count(1_000_000)
        self._connections = count(1)
        self._ports = count(40_000)
        self._listening: dict[Address, ListeningSocket | Callable[[SimulatedSocket], None]] = {}
        self._readers: dict[int, tuple[Callable[[], object], Process | None]] = {}
        self._listeners: dict[int, ListeningSocket] = {}
        self.open: dict[int, SimulatedSocket] = {}

    def now(self) -> float:
        return self.loop.time()

    def at(self, when: float, callback: Callable[[], None]) -> None:
        self.loop.call_at(when, callback, context=WORLD)

    def more_delay(self, end: SimulatedSocket) -> float:
        return max(self.slow.get(end.address[0], 0.0), self.slow.get(end.peer.address[0], 0.0)) if self.slow else 0.0

    def note(self, end: SimulatedSocket, data: bytes | None) -> None:
        """Add a delivery to the transcript; None is a reset."""
        size = 0 if data is None else len(data)
        self.transcript.update(_MARK.pack(self.now(), end.number, size, 0 if data is None else zlib.crc32(data)))
        if self.log is not None:
            what = "reset" if data is None else f"{size} bytes" if data else "end"
            self.say(f"{end.peer.address[0]}:{end.peer.address[1]} -> {end.address[0]}:{end.address[1]} {what}")

    def say(self, line: str) -> None:
        """Add an event of the simulation itself to the transcript, and to the log if there is one."""
        self.transcript.update(line.encode())
        if self.log is not None:
            self.log.append(f"{self.now() - 1000.0:9.4f}  {line}")

    # Listening.

    def listen(self, process: Process, address: Address) -> ListeningSocket:
        """Raises OSError if the address is in use."""
        if address in self._listening:
            raise OSError(98, "Address already in use")
        bound = ListeningSocket(self, next(self._numbers), process, address)
        self._listening[address] = self._listeners[bound.fileno()] = bound
        return bound

    def serve(self, address: Address, accept: Callable[[SimulatedSocket], None]) -> None:
        """Let a part of the world, such as a broker, accept connections at an address."""
        self._listening[address] = accept

    def stop_listening(self, address: Address, bound: object = None) -> None:
        if bound is None or self._listening.get(address) is bound:
            self._listening.pop(address, None)

    def add_reader(self, fd: int, callback: Callable[[], object]) -> None:
        self._readers[fd] = callback, PROCESS.get()
        if fd in self.open:
            self.open[fd].on_event = lambda: self._wake(fd)
        self._wake(fd)

    def remove_reader(self, fd: int) -> bool:
        return self._readers.pop(fd, None) is not None

    def _is_readable(self, fd: int) -> bool:
        if fd in self._listeners:
            return bool(self._listeners[fd].queue)
        return fd in self.open and self.open[fd].readable

    def _wake(self, fd: int) -> None:
        if fd in self._readers and self._is_readable(fd):
            self.at(self.now(), lambda: self._read(fd))

    def _read(self, fd: int) -> None:
        reader = self._readers.get(fd)
        if reader is None or not self._is_readable(fd):
            return
        callback, process = reader
        if process is None or process.alive:
            (callback if process is None else lambda: process.run(callback))()
        self._wake(fd)

    # Connecting.

    async def connect(
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[SimulatedTransport, asyncio.Protocol]:
        """Raises OSError if nobody listens."""
        process = PROCESS.get()
        made = protocol_factory()
        tap = None if self.on_dial is None or process is None else self.on_dial(process, made)
        source = process.host if process is not None else "10.9.9.9"
        line = Line(f"{self.seed}-{next(self._connections)}")
        await asyncio.sleep(line.delay() * 2)
        target = self._listening.get((host, port))
        if target is None:
            raise ConnectionRefusedError(111, "Connection refused")
        ours = SimulatedSocket(self, next(self._numbers), process, (source, next(self._ports)), line)
        accepting = target.process if isinstance(target, ListeningSocket) else None
        theirs = SimulatedSocket(self, next(self._numbers), accepting, (host, port), line)
        ours.peer, theirs.peer = theirs, ours
        self.open[ours.number] = ours
        self.open[theirs.number] = theirs
        if isinstance(target, ListeningSocket):
            target.queue.append(theirs)
            self._wake(target.fileno())
        else:
            target(theirs)
        transport, protocol = self.adopt(lambda: made, ours)
        if tap is not None:
            tap.connected = True
            transport.tap = tap
        return transport, protocol

    def adopt(
        self, protocol_factory: Callable[[], asyncio.Protocol], connection: Any
    ) -> tuple[SimulatedTransport, asyncio.Protocol]:
        """Make the transport of a socket."""
        protocol = protocol_factory()
        transport = SimulatedTransport(self.loop, connection, protocol)
        protocol.connection_made(transport)
        transport.start()
        return transport, protocol

    def forget(self, end: SimulatedSocket) -> None:
        self.open.pop(end.number, None)

    def end_process(self, process: Process) -> None:
        """Close all sockets of a killed process, as the kernel does. Bytes in the buffers of its transports are lost."""
        for bound in [bound for bound in self._listeners.values() if bound.process is process]:
            bound.close()
        for end in [end for end in self.open.values() if end.process is process]:
            end.close()


@dataclass(frozen=True, slots=True)
class Violation:
    """`rule` names the invariant; `time` is in seconds since the start of the run."""

    rule: str
    text: str
    time: float

    def __str__(self) -> str:
        return f"{self.time:.4f} s: {self.rule}: {self.text}"


class Verdicts:
    """Collects violations, and calls `on_first` for the first one."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.violations: list[Violation] = []
        self.on_first: Callable[[], None] = lambda: None

    def fail(self, rule: str, text: str) -> None:
        self.violations.append(Violation(rule, text, round(self._now(), 4)))
        if len(self.violations) == 1:
            self.on_first()
