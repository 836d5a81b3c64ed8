"""A client that floods Metadata and ignores throttle times, and a sink that reads as little of it as a muted connection.

Both have processes of their own. The flooding client has the scheduler's policy SCHED_IDLE, so it yields to the bystander.
On a machine of its own, it would take none of the bystander's time either.
"""

import os
import select
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection

from loadtest.scenarios.metadata_flood.child_process import ChildProcess

CONNECTIONS, CLIENT_ID = 4, "flood"
ALLOWED_PER_SECOND = 10

_STEP_SECONDS = 0.025
_CHUNK_BYTES = 256_000
"""The most that uvloop reads at once."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def _metadata(client_id: str) -> bytes:
    """Metadata v8 without topics: the smallest answer of a broker."""
    head = struct.pack(">hhih", 3, 8, 1, len(client_id)) + client_id.encode()
    return struct.pack(">i", len(head) + 7) + head + struct.pack(">i???", 0, False, False, False)


@dataclass(frozen=True)
class Flooded:
    """Requests per second: those that the client offered, and those that its sockets took."""

    offered: float
    taken: float


class Flooder(ChildProcess):
    """The flooding client, on the processors `cpus`."""

    def __init__(self, per_second: int, cpus: set[int]) -> None:
        super().__init__(_flood_in_turns, per_second, cpus)

    def begin(self, address: str, allowed: str = "") -> None:
        """Flood `address`. A client without a quota sends `ALLOWED_PER_SECOND` requests to `allowed`, if that is an address."""
        self.pipe.send((address, allowed))

    def end(self) -> Flooded:
        """Close the connections. Raises `ChildError`."""
        self.pipe.send(None)
        found = self.answer()
        assert isinstance(found, Flooded)
        return found


class StalledSink(ChildProcess):
    """The sink, on the processors `cpus`."""

    def __init__(self, cpus: set[int]) -> None:
        super().__init__(_take_first_chunks, cpus)

    def address(self) -> str:
        """To be called once. Raises `ChildError`."""
        return str(self.answer())


class _FloodedConnection:
    """A connection that never waits. A request that finds no room in the socket is dropped, as its time is over."""

    def __init__(self, address: str, client_id: str) -> None:
        host, _, port = address.rpartition(":")
        self._request = _metadata(client_id)
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._rest = b""

    def send(self, count: int) -> int:
        """The number of requests that have begun."""
        before = len(self._rest)
        try:
            done = self._socket.send(self._rest + self._request * count)
        except BlockingIOError:
            return 0
        finally:
            self._drop_responses()
        if done < before:
            self._rest = self._rest[done:]
            return 0
        begun, cut = divmod(done - before, len(self._request))
        self._rest = self._request[cut:] if cut else b""
        return begun + (cut > 0)

    def _drop_responses(self) -> None:
        try:
            while self._socket.recv(1 << 16):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._socket.close()


def _flood_in_turns(per_second: int, cpus: set[int], pipe: Connection) -> None:
    os.sched_setaffinity(0, cpus)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        address, allowed = pipe.recv()
        pipe.send(_flood(address, allowed, per_second, pipe))


def _flood(address: str, allowed: str, per_second: int, pipe: Connection) -> Flooded:
    """Flood until `pipe` has a message."""
    clients = [_FloodedConnection(address, CLIENT_ID) for _ in range(CONNECTIONS)]
    others = [_FloodedConnection(allowed, "allowed")] if allowed else []
    start, offered, taken, passed = time.monotonic(), 0, 0, 0
    while not pipe.poll(_STEP_SECONDS):
        seconds = time.monotonic() - start
        due = int(seconds * per_second / CONNECTIONS) - offered // CONNECTIONS
        offered += due * CONNECTIONS
        taken += sum([client.send(due) for client in clients])
        if seconds * ALLOWED_PER_SECOND > passed:
            passed += sum([client.send(1) for client in others])
    pipe.recv()
    seconds = time.monotonic() - start
    for client in clients + others:
        client.close()
    return Flooded(offered / seconds, taken / seconds)


def _take_first_chunks(cpus: set[int], pipe: Connection) -> None:
    os.sched_setaffinity(0, cpus)
    muted: deque[socket.socket] = deque(maxlen=CONNECTIONS)
    with socket.create_server(("127.0.0.1", 0)) as server:
        pipe.send(f"127.0.0.1:{server.getsockname()[1]}")
        while True:
            select.select((server,), (), ())
            connection, _ = server.accept()
            connection.recv(_CHUNK_BYTES)
            muted.append(connection)
