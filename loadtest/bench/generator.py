"""The load generator: closed loops over plain connections, in its own process, so that it does not count as the proxy's CPU.

    python -m loadtest.bench.generator '{"mode": "saturate", "address": "127.0.0.1:9092", ...}'

It prints one JSON object. It reads the CPU clocks of the given processes at the same instants as its own count of requests.
"""

import asyncio
import json
import os
import ssl
import struct
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, cast

import uvloop

from loadtest.bench.frames import Load, fetch_load, produce_load

_BUFFER_BYTES = 256 * 1024


class LoadError(RuntimeError):
    """A response was wrong or missing."""


@dataclass(frozen=True)
class Job:
    """A load. `size` is the size of a Produce's batch or of a Fetch's response, in bytes. `mixed` produces on every other
    connection, and fetches on the others.

    `saturate` keeps `depth` requests in flight on each connection. `connect` opens a connection for each request, and keeps
    `connections` of them open. The CPU time is the sum of the processes `pids`. With `ca`, a PEM file, connections use TLS and
    verify the certificate.
    """

    address: str
    topic: str
    partitions: int
    size: int
    api: Literal["produce", "fetch", "mixed"] = "produce"
    fetch_topic: str = ""
    mode: Literal["saturate", "connect"] = "saturate"
    connections: int = 1
    depth: int = 1
    seconds: float = 1.0
    warmup: float = 0.3
    pids: tuple[int, ...] = ()
    ca: str = ""

    def load(self, connection: int) -> Load:
        """The load of one connection. Connections use the partitions in turn."""
        if self.api == "fetch" or (self.api == "mixed" and connection % 2):
            return fetch_load(self.fetch_topic, connection % self.partitions, self.size, self.depth)
        return produce_load(self.topic, connection % self.partitions, self.size, self.depth)


@dataclass(frozen=True)
class Saturated:
    """`requests` answered within `seconds`; the processes used `cpu` seconds. After `connect`, each had its own connection."""

    requests: int
    seconds: float
    cpu: float


def pin(pid: int, cpus: set[int]) -> None:
    """Run all threads of a process on these processors; later threads inherit that."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cpus)


def cpu_seconds(pids: tuple[int, ...]) -> float:
    """The CPU time (user and system) of these processes, including ended threads.

    Uses clock_getcpuclockid(3), which counts nanoseconds; /proc/PID/stat counts in hundredths of a second.
    """
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


class Connection(asyncio.BufferedProtocol):
    """One closed loop: each response triggers the next request. It checks only the head of a response."""

    def __init__(self, load: Load, failed: "asyncio.Future[None]") -> None:
        self._frames = load.frames
        self._expected = load.expected
        self._expected_at = load.expected_at
        self._head_length = load.expected_at + len(load.expected)
        self._failed = failed
        self._next = 0
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._head = b""
        self._rest = 0
        self._length = 0
        self.answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def start(self) -> None:
        for frame in self._frames:
            self._transport.write(frame)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        at = 0
        while at < nbytes:
            if self._rest:
                step = min(self._rest, nbytes - at)
                self._rest -= step
                if not self._rest:
                    self._answered()
            else:
                step = min(self._head_length - len(self._head), nbytes - at)
                self._head += self._buffer[at : at + step]
                if len(self._head) == self._head_length and not self._begin():
                    return
            at += step

    def _begin(self) -> bool:
        head, self._head = self._head, b""
        length, correlation_id = struct.unpack_from(">ii", head)
        self._length = self._length or length
        error = head[self._expected_at :]
        if correlation_id == self._next and error == self._expected and length == self._length:
            self._rest = 4 + length - self._head_length
            return True
        self._fail(
            f"answer {self.answered + 1}: {length} bytes (before: {self._length}), correlation id {correlation_id} "
            f"(sent: {self._next}), error {error.hex()}"
        )
        return False

    def _answered(self) -> None:
        self.answered += 1
        self._transport.write(self._frames[self._next])
        self._next = (self._next + 1) % len(self._frames)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection was closed after {self.answered} answers: {exc or 'end of stream'}")

    def _fail(self, why: str) -> None:
        if not self._failed.done():
            self._failed.set_exception(LoadError(why))

    def close(self) -> None:
        """Close without waiting for responses."""
        self._transport.abort()


async def wait_unless_failed(failed: "asyncio.Future[None]", seconds: float) -> None:
    """Raises the exception of `failed` as soon as it has one."""
    await asyncio.wait([failed], timeout=seconds)
    if failed.done():
        failed.result()


async def saturate(job: Job) -> Saturated:
    """Run closed loops, and measure after the warm-up. Raises `LoadError`, `OSError`."""
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()
    host, port = host_and_port(job.address)
    tls = ssl.create_default_context(cafile=job.ca) if job.ca else None
    connections = []
    for index in range(job.connections):
        load = job.load(index)
        _, connection = await loop.create_connection(lambda load=load: Connection(load, failed), host, port, ssl=tls)
        connections.append(connection)
    for connection in connections:
        connection.start()

    def now() -> tuple[float, float, int]:
        return time.perf_counter(), cpu_seconds(job.pids), sum(connection.answered for connection in connections)

    await wait_unless_failed(failed, job.warmup)
    began, cpu, answered = now()
    await wait_unless_failed(failed, job.seconds)
    ended, cpu_after, answered_after = now()
    failed.cancel()
    for connection in connections:
        connection.close()
    return Saturated(answered_after - answered, ended - began, cpu_after - cpu)


async def connect(job: Job) -> Saturated:
    """Open, use and close connections, one request on each. Raises `LoadError`, `OSError`."""
    tls = ssl.create_default_context(cafile=job.ca) if job.ca else None
    host, port = host_and_port(job.address)
    answered = 0

    async def visits(index: int) -> None:
        nonlocal answered
        load = job.load(index)
        while True:
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            writer.write(load.frames[0])
            answer = await reader.readexactly(4)
            answer += await reader.readexactly(int.from_bytes(answer, "big"))
            writer.close()
            error = answer[load.expected_at : load.expected_at + len(load.expected)]
            if error != load.expected:
                raise LoadError(f"error {error.hex()}: {answer[:100].hex()}")
            answered += 1

    ways = [asyncio.create_task(visits(index)) for index in range(job.connections)]

    async def now(seconds: float) -> tuple[float, float, int]:
        done, _ = await asyncio.wait(ways, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for way in done:
            way.result()
        return time.perf_counter(), cpu_seconds(job.pids), answered

    began, cpu, before = await now(job.warmup)
    ended, cpu_after, after = await now(job.seconds)
    for way in ways:
        way.cancel()
    return Saturated(after - before, ended - began, cpu_after - cpu)


def host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    """Run the job in the only argument. On an error, print its message and exit with 1."""
    fields = json.loads(sys.argv[1])
    job = Job(**{**fields, "pids": tuple(fields["pids"])})
    try:
        result = uvloop.run(saturate(job) if job.mode == "saturate" else connect(job))
    except (LoadError, OSError, asyncio.IncompleteReadError) as error:
        sys.exit(f"{job.address}: {error}")
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
