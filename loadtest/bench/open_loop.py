"""Open-loop load for the latency of a proxy, with the broker behind the proxy in the same process.

    python -m loadtest.bench.open_loop '{"address": "127.0.0.1:9092", ...}'

It prints one JSON object. Each request has a due time from a Poisson process. Its latency counts from that time, so a request
that is sent late because of a stall shows the whole stall (corrected coordinated omission).

Client and broker share one thread. It polls and never sleeps, so no scheduler wakes it late. It needs a processor of its own.
Requests that are due while another process has that processor do not count.
"""

import gc
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import cycle
from urllib.parse import urlsplit

import numpy as np

from loadtest.bench.absences import Absences, Span, undisturbed
from loadtest.bench.estimate import Floats
from loadtest.bench.frames import produce_load
from loadtest.bench.generator import LoadError, cpu_seconds, host_and_port
from loadtest.bench.null_broker import answer

_CORRELATION_IDS = 64
_CHUNK = 1 << 18
_PATIENCE_SECONDS = 10.0
_SENDS_IN_A_ROW = 4
_VISIT_SECONDS = 1.0
_PERCENTILES = (50, 99, 99.9)


@dataclass(frozen=True)
class OpenLoop:
    """A load of `rate` requests a second on `connections` connections in turn, each request with a batch of `size` bytes.

    The broker listens on `broker_port`. The CPU time is that of the processes `pids`. The load requests each of the URLs
    `visits` once a second, one after the other, unless the response before is still arriving.
    """

    address: str
    broker_port: int
    topic: str
    size: int
    rate: float
    connections: int = 64
    seconds: float = 2.0
    warmup: float = 0.5
    seed: int = 0
    pids: tuple[int, ...] = ()
    visits: tuple[str, ...] = ()


@dataclass(frozen=True)
class OpenSample:
    """Percentiles of latencies and of the load's own lag in microseconds. The lag is the time from the due time to the sending.

    `busy` is the CPU time of the proxy for these requests, divided by the time in which they were due. `disturbed` is the share
    of requests that do not count, because the load's processor was taken from it.
    """

    requests: int
    p50: float
    p99: float
    p999: float
    lag_p50: float
    lag_p99: float
    lag_p999: float
    busy: float
    disturbed: float


class DisturbedError(LoadError):
    """Other processes disturbed every request."""


def schedule(job: OpenLoop) -> Floats:
    """Due times of a Poisson process, in seconds from the start; the seed decides them."""
    count = int(job.rate * (job.warmup + job.seconds))
    gaps: Floats = np.random.default_rng(job.seed).exponential(1 / job.rate, count)
    return np.cumsum(gaps)


def sample(
    due: Floats, sent: Floats, received: Floats, warmup: float, busy: float, absences: Sequence[Span] = ()
) -> OpenSample:
    """Summarise the undisturbed requests that were due after the warm-up. All times are seconds from the start.

    Raises `DisturbedError` if there is none.
    """
    settled = due >= warmup
    measured = settled & undisturbed(due, absences)
    if not measured.any():
        raise DisturbedError("other processes disturbed every request: run it on a quieter machine")
    disturbed = 1 - float(measured.sum() / settled.sum())
    p50, p99, p999 = map(float, np.percentile((received - due)[measured], _PERCENTILES) * 1e6)
    lag_p50, lag_p99, lag_p999 = map(float, np.percentile((sent - due)[measured], _PERCENTILES) * 1e6)
    return OpenSample(int(measured.sum()), p50, p99, p999, lag_p50, lag_p99, lag_p999, busy, disturbed)


class Peer:
    """One non-blocking socket. While the kernel takes no more bytes, it keeps them and is in `stuck`."""

    def __init__(self, connection: socket.socket, stuck: "set[Peer]") -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self._stuck = stuck
        self._unsent = b""
        self._read = b""

    def write(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        try:
            done = self.socket.send(data)
        except BlockingIOError:
            done = 0
        if done < len(data):
            self._unsent = data[done:]
            self._stuck.add(self)

    def flush(self) -> None:
        self._stuck.discard(self)
        unsent, self._unsent = self._unsent, b""
        self.write(unsent)

    def frames(self, expected: tuple[bytes, ...], first: int) -> int:
        """Read whole frames; the n-th must be `expected[(first + n) % len(expected)]`. Raises `LoadError`, `OSError`."""
        try:
            data = self.socket.recv(_CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            raise LoadError("the connection was closed")
        data = self._read + data
        at = count = 0
        length = len(expected[0])
        while len(data) - at >= length:
            frame = expected[(first + count) % len(expected)]
            if data[at : at + length] != frame:
                raise LoadError(f"expected {frame[:80].hex()}, got {data[at : at + 80].hex()}")
            at += length
            count += 1
        self._read = data[at:]
        return count

    def close(self) -> None:
        self._stuck.discard(self)
        self.socket.close()


class LoadGenerator:
    """Sends requests at their due times, answers them as the broker, and notes the times."""

    def __init__(self, job: OpenLoop, absences: Absences) -> None:
        self._job = job
        self._absences = absences
        self._requests = produce_load(job.topic, 0, job.size, _CORRELATION_IDS).frames
        response = answer(job.topic)
        self._responses = tuple(_numbered(response, number) for number in range(_CORRELATION_IDS))
        self._due = schedule(job)
        self._start = 0.0
        self._sent: list[float] = []
        self._received = [0.0] * len(self._due)
        self._answered = 0
        self._handlers: dict[int, Callable[[], None]] = {}
        self._clients: list[Peer] = []
        self._peers: list[Peer] = []  # those and the broker's
        self._stuck: set[Peer] = set()
        self._visits: dict[str, socket.socket] = {}
        self._urls = cycle(job.visits)

    def run(self) -> OpenSample:
        """Raises `LoadError`, `OSError`."""
        job = self._job
        target = host_and_port(job.address)
        with socket.create_server((target[0], job.broker_port), backlog=1024) as listener, select.epoll() as epoll:
            self._epoll = epoll
            listener.setblocking(False)
            self._watch(listener, lambda: self._accept(listener))
            for index in range(job.connections):
                client = Peer(socket.create_connection(target, _PATIENCE_SECONDS), self._stuck)
                self._clients.append(client)
                self._peers.append(client)
                self._watch(client.socket, self._client_handler(client, index))
            try:
                busy = self._drive()
            finally:
                for open_socket in (*(peer.socket for peer in self._peers), *self._visits.values()):
                    open_socket.close()
        absences = [(begin - self._start, end - self._start) for begin, end in self._absences.spans]
        return sample(self._due, np.array(self._sent), np.array(self._received), job.warmup, busy, absences)

    def _drive(self) -> float:
        """Drive all requests through the proxy; returns its share of one processor."""
        job, due, sent = self._job, self._due.tolist(), self._sent
        poll, handlers, stuck, clock = self._epoll.poll, self._handlers, self._stuck, time.perf_counter
        total, requests, clients = len(due), self._requests, self._clients
        measured_from = int(np.searchsorted(self._due, job.warmup))
        began_cpu = ended_cpu = 0.0
        self._start = start = next_visit = clock()
        absences = self._absences
        absences.begin(start)
        end = start + due[-1] + _PATIENCE_SECONDS
        while self._answered < total:
            now = clock()
            absences.look(now)
            for _ in range(_SENDS_IN_A_ROW):
                number = len(sent)
                if number == total or due[number] > now - start:
                    break
                if number == measured_from:
                    began_cpu = cpu_seconds(job.pids)
                sent.append(now - start)
                clients[number % len(clients)].write(requests[number // len(clients) % _CORRELATION_IDS])
                now = clock()
                if number == total - 1:
                    ended_cpu = cpu_seconds(job.pids)
            for descriptor, _ in poll(0):
                handlers[descriptor]()
            if stuck:
                for peer in [*stuck]:
                    peer.flush()
            if now >= next_visit:
                next_visit += _VISIT_SECONDS / max(1, len(job.visits))
                self._visit_next_page()
            if now > end:
                raise LoadError(f"{total - self._answered} of {total} requests have no response")
        return (ended_cpu - began_cpu) / float(self._due[-1] - self._due[measured_from])

    def _watch(self, connection: socket.socket, handler: Callable[[], None]) -> None:
        self._handlers[connection.fileno()] = handler
        self._epoll.register(connection, select.EPOLLIN)

    def _client_handler(self, client: Peer, index: int) -> Callable[[], None]:
        responses, received, step, taken = self._responses, self._received, self._job.connections, 0

        def read() -> None:
            nonlocal taken
            count = client.frames(responses, taken)
            at = time.perf_counter() - self._start
            for number in range(taken, taken + count):
                received[number * step + index] = at
            taken += count
            self._answered += count

        return read

    def _accept(self, listener: socket.socket) -> None:
        peer = Peer(listener.accept()[0], self._stuck)
        self._peers.append(peer)
        requests, responses, taken = self._requests, self._responses, 0

        def read() -> None:
            nonlocal taken
            try:
                count = peer.frames(requests, taken)
            except (LoadError, OSError):  # a request of the proxy's own, such as Metadata, or the end of the connection
                self._epoll.unregister(peer.socket)
                peer.close()
                return
            for number in range(taken, taken + count):
                peer.write(responses[number % _CORRELATION_IDS])
            taken += count

        self._watch(peer.socket, read)

    def _visit_next_page(self) -> None:
        url = next(self._urls, None)
        if url is not None and url not in self._visits:
            self._visit(url)

    def _visit(self, url: str) -> None:
        parts = urlsplit(url)
        page = self._visits[url] = socket.create_connection((str(parts.hostname), int(parts.port or 80)))
        page.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())

        def read() -> None:
            if not page.recv(_CHUNK):
                self._epoll.unregister(page)
                page.close()
                del self._visits[url]

        self._watch(page, read)


def _numbered(response: bytearray, correlation_id: int) -> bytes:
    struct.pack_into(">i", response, 4, correlation_id)
    return bytes(response)


def main() -> None:
    """Run the job in the first argument on the processor in the second.

    On an error, print its message and exit with 1, or with `os.EX_TEMPFAIL` if a second try may succeed.
    """
    fields = json.loads(sys.argv[1])
    os.sched_setaffinity(0, {int(sys.argv[2])})
    job = OpenLoop(**{**fields, "pids": tuple(fields["pids"]), "visits": tuple(fields["visits"])})
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    gc.disable()
    try:
        result = LoadGenerator(job, Absences()).run()
    except (LoadError, OSError) as error:
        print(f"{job.address}: {error}", file=sys.stderr)
        sys.exit(os.EX_TEMPFAIL if isinstance(error, DisturbedError) else 1)
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
