"""`python -m loadtest.scenarios.storm`: one address connects far above its limit. Measures other clients' latency, and the
CPU.

The storm comes from 127.0.0.2, in its own process. Its connections send nothing, and end when the gateway closes them or
after two seconds. Two other clients send requests all the time: one on an open connection, one on a new connection for each
request. The result compares their latency before and during the storm.
"""

import argparse
import multiprocessing
import selectors
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.testkit.gateway_process import CompiledGateway, GatewayError, GatewayProcess
from loadtest.testkit.kafka import JarsMissingError, KafkaCluster, NodeError, read_exactly
from loadtest.testkit.paths import RUN

STORM_IP, STEADY_IP, NEWCOMER_IP = "127.0.0.2", "127.0.0.3", "127.0.0.4"
_MIB = 1024 * 1024
_IP_BIND_ADDRESS_NO_PORT = 24
_GIVE_UP_SECONDS = 2.0
_STEADY_PAUSE, _NEWCOMER_PAUSE = 0.002, 0.05
_CLIENT_ID = b"bystander"
_REQUEST = struct.pack(">ihhih", 10 + len(_CLIENT_ID), 18, 0, 1, len(_CLIENT_ID)) + _CLIENT_ID
"""ApiVersions v0 with correlation id 1."""


def open_from(ip: str, address: tuple[str, int]) -> socket.socket:
    """A connection from the source address `ip`. Raises `OSError`."""
    client = socket.socket()
    client.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.settimeout(30.0)
    client.bind((ip, 0))
    client.connect(address)
    return client


def ask(client: socket.socket) -> None:
    """Send one request and receive its response. Raises `OSError`."""
    client.sendall(_REQUEST)
    (size,) = struct.unpack(">i", read_exactly(client, 4))
    read_exactly(client, size)


def storm(address: tuple[str, int], per_second: int, seconds: float) -> None:
    """Open connections at this rate from `STORM_IP`, and ignore all errors."""
    selector = selectors.DefaultSelector()
    open_since: deque[tuple[float, socket.socket]] = deque()
    start, done = time.monotonic(), 0
    while (now := time.monotonic()) < start + seconds:
        while done < (now - start) * per_second:
            client = socket.socket()
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            client.bind((STORM_IP, 0))
            client.connect_ex(address)
            selector.register(client, selectors.EVENT_READ)
            open_since.append((now, client))
            done += 1
        for key, _ in selector.select(0.001):
            client = key.fileobj  # type: ignore[assignment]
            selector.unregister(client)
            client.close()
        while open_since and (open_since[0][1].fileno() < 0 or open_since[0][0] < now - _GIVE_UP_SECONDS):
            client = open_since.popleft()[1]
            if client.fileno() >= 0:
                selector.unregister(client)
                client.close()


@dataclass
class Watch:
    """The figures of a period: the seconds that responses took, and the gateway's resources."""

    steady: list[float] = field(default_factory=list)
    newcomers: list[float] = field(default_factory=list)
    sockets: int = 0
    resident_bytes: int = 0


@contextmanager
def watching(gateway: GatewayProcess) -> Iterator[Watch]:
    """Send requests while the block runs."""
    watch, over = Watch(), threading.Event()
    host, _, port = gateway.bootstrap_servers.rpartition(":")
    address = (host, int(port))

    def steady() -> None:
        with open_from(STEADY_IP, address) as client:
            ask(client)  # the first request waits for the gateway's connection to the broker
            while not over.wait(_STEADY_PAUSE):
                begin = time.perf_counter()
                ask(client)
                watch.steady.append(time.perf_counter() - begin)

    def newcomer() -> None:
        while not over.wait(_NEWCOMER_PAUSE):
            begin = time.perf_counter()
            with open_from(NEWCOMER_IP, address) as client:
                ask(client)
            watch.newcomers.append(time.perf_counter() - begin)

    def look() -> None:
        while not over.wait(0.25):
            watch.sockets = max(watch.sockets, len(gateway.sockets()))
            watch.resident_bytes = max(watch.resident_bytes, gateway.resident_bytes())

    threads = [threading.Thread(target=target, daemon=True) for target in (steady, newcomer, look)]
    for thread in threads:
        thread.start()
    try:
        yield watch
    finally:
        over.set()
        for thread in threads:
            thread.join()


def rejected(gateway: GatewayProcess) -> str:
    """The number of rejected connections by reason, from /metrics."""
    lines = gateway.get("/metrics").splitlines()
    return ", ".join(line.removeprefix("weir_connections_") for line in lines if line.startswith("weir_connections_rejected"))


def measure(per_second: int, limit: int, seconds: float) -> tuple[Watch, Watch, str]:
    """The figures before and during the storm, and the rejected connections."""
    RUN.mkdir(exist_ok=True)
    config = {"quotas": {"entities": [{"ip": "<default>", "connection_creation_rate": limit}]}}
    with (
        tempfile.TemporaryDirectory(prefix="storm-", dir=RUN) as directory,
        KafkaCluster(Path(directory)) as kafka,
        CompiledGateway(Path(directory) / "weir", kafka.bootstrap_servers, config) as gateway,
    ):
        host, _, port = gateway.bootstrap_servers.rpartition(":")
        with watching(gateway):
            time.sleep(5.0)  # lets the broker's JVM compile
        with watching(gateway) as before:
            time.sleep(seconds)
        process = multiprocessing.get_context("spawn").Process(
            target=storm, args=((host, int(port)), per_second, seconds + 4.0), daemon=True
        )
        process.start()
        try:
            time.sleep(3.0)  # until its interpreter has started
            with watching(gateway) as during:
                time.sleep(seconds)
            return before, during, rejected(gateway)
        finally:
            process.kill()
            process.join()


def _times(name: str, before: Sequence[float], during: Sequence[float]) -> str:
    def column(times: Sequence[float]) -> str:
        p99 = statistics.quantiles(times, n=100)[98]
        return f"p50 {statistics.median(times) * 1000:6.2f} ms  p99 {p99 * 1000:6.2f} ms  max {max(times) * 1000:6.1f} ms"

    return f"{name:24} before: {column(before)}   during: {column(during)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.storm", description=__doc__)
    parser.add_argument("--per-second", type=int, default=2_000, help="connections per second of the storm (default: 2000)")
    parser.add_argument("--limit", type=int, default=50, help="connection_creation_rate of every address (default: 50)")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration before the storm, and of the storm (default: 20)")
    options = parser.parse_args()
    try:
        before, during, rejections = measure(options.per_second, options.limit, options.seconds)
    except (JarsMissingError, NodeError, GatewayError, OSError) as error:
        print(f"storm: {error}", file=sys.stderr)
        return 1
    print(f"{options.per_second} connections a second from {STORM_IP}, limit {options.limit}, for {options.seconds:g} s")
    print(_times("on an open connection", before.steady, during.steady))
    print(_times("a new connection", before.newcomers, during.newcomers))
    print(f"the gateway's sockets: {before.sockets} before, at most {during.sockets} during")
    resident = [watch.resident_bytes / _MIB for watch in (before, during)]
    print(f"the gateway's memory: {resident[0]:.1f} MiB before, at most {resident[1]:.1f} MiB during")
    print(f"rejected connections: {rejections}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
