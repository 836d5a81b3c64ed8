"""A producer in an open loop: it sends at a steady rate on one connection, and waits for no response."""

import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from loadtest.bench.estimate import Floats
from loadtest.bench.frames import Load, produce_load
from loadtest.scenarios.metadata_flood.child_process import PATIENCE_SECONDS, ChildError, ChildProcess

_DEPTH = 16
_HEAD = struct.Struct(">ii")


@dataclass(frozen=True)
class Latencies:
    """Of each answered request: when it was sent, by `time.monotonic`, and the time until its response, in seconds."""

    sent: Floats
    seconds: Floats

    def between(self, begun: float, ended: float) -> Floats:
        first, last = np.searchsorted(self.sent, (begun, ended))
        return self.seconds[first:last]


class SteadyProducer(ChildProcess):
    """The producer, on the processors `cpus`."""

    def __init__(self, address: str, topic: str, size: int, per_second: float, cpus: set[int]) -> None:
        super().__init__(_produce, address, topic, size, per_second, cpus)

    def stop(self) -> Latencies:
        """End the producer. Raises `ChildError`: a wrong response fails the producer as well."""
        self.pipe.send(None)
        found = self.answer()
        assert isinstance(found, Latencies)
        return found


def _produce(address: str, topic: str, size: int, per_second: float, cpus: set[int], pipe: Connection) -> None:
    os.sched_setaffinity(0, cpus)
    host, _, port = address.rpartition(":")
    load = produce_load(topic, 0, size, _DEPTH)
    try:
        with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sent, received = _exchange(connection, load, per_second, pipe)
    except (OSError, ChildError) as error:
        pipe.send(ChildError(f"the producer: {error}"))
    else:
        times = np.array(sent[: len(received)])
        pipe.send(Latencies(times, np.array(received) - times))


def _exchange(connection: socket.socket, load: Load, per_second: float, pipe: Connection) -> tuple[list[float], list[float]]:
    """The times of requests and of responses, until `pipe` has a message."""
    sent: list[float] = []
    received: list[float] = []
    rest = b""
    due = time.monotonic()
    while True:
        now = time.monotonic()
        if now >= due:
            connection.sendall(load.frames[len(sent) % _DEPTH])
            sent.append(now)
            due += 1 / per_second
            continue
        readable, _, _ = select.select((connection.fileno(), pipe.fileno()), (), (), due - now)
        if connection.fileno() in readable:
            data = connection.recv(1 << 16)
            now = time.monotonic()
            if not data:
                raise ChildError(f"the connection was closed after {len(received)} responses")
            rest += data
            while len(rest) >= 4 and len(rest) >= (after := 4 + int.from_bytes(rest[:4], "big")):
                _check(rest[:after], load, len(received) % _DEPTH)
                received.append(now)
                rest = rest[after:]
        if pipe.fileno() in readable:
            return sent, received


def _check(response: bytes, load: Load, correlation_id: int) -> None:
    _, found = _HEAD.unpack_from(response)
    error = response[load.expected_at : load.expected_at + len(load.expected)]
    if found != correlation_id or error != load.expected:
        raise ChildError(f"response {found} with error {error.hex()}, and {correlation_id} was due")
