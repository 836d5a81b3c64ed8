"""`python -m loadtest.scenarios.workers.load JOB` (a `Job` as JSON): closed loops that only count the received bytes.

Each connection has two writes of requests in flight. Prints one JSON object: the answered requests, and the CPU seconds of
the given processes over the same time.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import cast

import uvloop

from loadtest.bench.frames import produce_load
from loadtest.bench.generator import cpu_seconds, wait_unless_failed
from loadtest.scenarios.workers.sink import CYCLE, answers

WRITE_BYTES, WRITE_REQUESTS = 128 * 1024, 128
"""The limits on the requests of one write. Larger writes would cost less CPU, but no real client sends them."""

_WRITES_IN_FLIGHT = 2
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class Job:
    """`size` is the bytes of records in a request. CPU time is measured for `gateway` and for `load` plus the generator."""

    address: str
    size: int
    connections: int
    seconds: float
    gateway: tuple[int, ...]
    load: tuple[int, ...]
    warmup: float = 0.5


@dataclass(frozen=True)
class LoadResult:
    """`requests` answered within `seconds`; CPU seconds of the gateway, of both ends of the load, and of the whole machine."""

    requests: int
    seconds: float
    gateway_cpu: float
    load_cpu: float
    machine_cpu: float


class LoadConnection(asyncio.BufferedProtocol):
    """One connection. A write is a fixed part of a cycle of requests; the next one follows as soon as as much is answered."""

    def __init__(self, cycle: bytes, length: int, failed: "asyncio.Future[None]") -> None:
        self._cycle = cycle
        self._part = max(1, min(WRITE_REQUESTS, WRITE_BYTES // length))
        while CYCLE % self._part:
            self._part -= 1
        self._length = length
        _, self._answer_length = answers()
        self._failed = failed
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._sent = 0
        self._received = 0

    @property
    def answered(self) -> int:
        """The number of requests with complete responses."""
        return self._received // self._answer_length

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        for _ in range(_WRITES_IN_FLIGHT):
            self._send()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received += nbytes
        while self._sent - self.answered <= (_WRITES_IN_FLIGHT - 1) * self._part:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._failed.done():
            self._failed.set_exception(RuntimeError(f"closed after {self.answered} answers: {exc or 'end of stream'}"))

    def _send(self) -> None:
        begin = self._sent % CYCLE * self._length
        self._transport.write(self._cycle[begin : begin + self._part * self._length])
        self._sent += self._part

    def close(self) -> None:
        """Close without waiting for responses."""
        self._transport.abort()


def frames(size: int) -> tuple[bytes, int]:
    """A cycle of requests, and the length of each."""
    load = produce_load("t", 0, size, CYCLE)
    (length,) = {len(frame) for frame in load.frames}
    return b"".join(load.frames), length


def machine_cpu() -> float:
    """The seconds of CPU time that all processes of the machine have used."""
    with open("/proc/stat") as file:  # noqa: PTH123 - not a path of anybody's
        user, nice, system, _, _, interrupt, soft, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + interrupt + soft) / 100


async def run_load(job: Job) -> LoadResult:
    """Run the job. Raises `RuntimeError` if a connection ends early."""
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()
    host, _, port = job.address.rpartition(":")
    cycle, length = frames(job.size)
    connections = [
        (await loop.create_connection(lambda: LoadConnection(cycle, length, failed), host, int(port)))[1]
        for _ in range(job.connections)
    ]

    def now() -> LoadResult:
        answered = sum(connection.answered for connection in connections)
        load = cpu_seconds(job.load) + time.process_time()
        return LoadResult(answered, time.perf_counter(), cpu_seconds(job.gateway), load, machine_cpu())

    await wait_unless_failed(failed, job.warmup)
    began = now()
    await wait_unless_failed(failed, job.seconds)
    ended = now()
    failed.cancel()
    for connection in connections:
        connection.close()
    return LoadResult(
        ended.requests - began.requests,
        ended.seconds - began.seconds,
        ended.gateway_cpu - began.gateway_cpu,
        ended.load_cpu - began.load_cpu,
        ended.machine_cpu - began.machine_cpu,
    )


if __name__ == "__main__":
    fields = json.loads(sys.argv[1])
    job = Job(**{**fields, "gateway": tuple(fields["gateway"]), "load": tuple(fields["load"])})
    print(json.dumps(asdict(uvloop.run(run_load(job)))))
