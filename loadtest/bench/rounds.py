"""Measures every way to the broker once in each round, in short turns, so that noise affects all of them alike."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from loadtest.bench.generator import Job, Saturated
from loadtest.bench.proxies import WAYS, ProxyUnavailableError, Tls, Way, wait_listening
from loadtest.testkit.gateway_process import HOST
from loadtest.testkit.kafka import KafkaCluster, free_port, run_tool, spawn, stop

PRODUCE_TOPIC, FETCH_TOPIC = "bench-produce", "bench-fetch"
PARTITIONS = 8
CONNECTIONS = (8, 64)
DEPTHS = (1, 5)
"""Requests in flight on a connection; 5 is the Java producer's max.in.flight.requests.per.connection."""

SIZES = (100, 1024, 16 * 1024, 1024 * 1024)
FETCH_SIZES = (16 * 1024, 1024 * 1024)
"""Bytes of a response. Each size has a topic with batches of a quarter, because brokers return whole batches."""

READS = ("fetch", "mixed")
"""APIs of cells that fetch."""


_LARGE = 256 * 1024
_ROOMY = 8 * 1024**3
_PATIENCE_SECONDS = 60.0
_BROKER = {
    # The produced records are not needed, so Kafka deletes them as fast as possible.
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
    "log.segment.delete.delay.ms": "0",
    "num.replica.fetchers": "1",
}
_RUBBISH = ("retention.bytes=33554432", "segment.bytes=16777216", "file.delete.delay.ms=0")


CONNECT: Final = "connect"
"""As the API of a cell: each Produce comes on a new connection."""


@dataclass(frozen=True)
class Cell:
    api: str
    size: int
    connections: int
    depth: int


Samples = dict[str, list[Saturated]]
"""The samples of each way. The n-th sample belongs to the n-th round."""


@dataclass
class Measured:
    """All results, in the order of cells and rounds. `null_broker` means that a null broker replaced Kafka."""

    ways: list[str]
    absent: dict[str, str]
    cells: dict[Cell, Samples]
    tls: bool = False
    null_broker: bool = False


@contextmanager
def broker() -> Iterator[tuple[KafkaCluster, Path]]:
    """A broker with the topics of the bench, and a folder for other files. In memory if that is large enough."""
    shm = Path("/dev/shm")
    in_memory = shm.is_dir() and shutil.disk_usage(shm).free > _ROOMY
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir=shm if in_memory else None) as name:
        directory = Path(name)
        with KafkaCluster(directory, properties=_BROKER) as cluster:
            _create_topic(cluster, PRODUCE_TOPIC, *_RUBBISH)
            for size in FETCH_SIZES:
                _create_topic(cluster, fetch_topic(size))
            yield cluster, directory


@contextmanager
def null_broker() -> Iterator[tuple[str, Path]]:
    """The address of a null broker, and a folder for other files."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        process = spawn([sys.executable, "-m", "loadtest.bench.null_broker", str(port), PRODUCE_TOPIC])
        try:
            wait_listening(process, port, "the null broker did not start")
            yield f"{HOST}:{port}", Path(name)
        finally:
            stop(process, timeout=1.0)


def _create_topic(cluster: KafkaCluster, name: str, *configs: str) -> None:
    arguments = ["--bootstrap-server", cluster.bootstrap_servers, "--create", "--topic", name]
    arguments += ["--partitions", str(PARTITIONS), *(part for config in configs for part in ("--config", config))]
    run_tool("org.apache.kafka.tools.TopicCommand", *arguments)


@contextmanager
def started(
    names: Sequence[str], address: str, directory: Path, tls: Tls | None = None
) -> Iterator[tuple[dict[str, Way], dict[str, str]]]:
    """Start the ways. The second result has the ways that can't be measured here, with the reasons."""
    ways: dict[str, Way] = {}
    absent: dict[str, str] = {}
    try:
        for name in names:
            way = WAYS[name](tls)
            try:
                way.start(address, directory / name)
            except ProxyUnavailableError as error:
                absent[name] = str(error)
            else:
                ways[name] = way
        yield ways, absent
    finally:
        for way in ways.values():
            way.stop()


def saturated(job: Job) -> Saturated:
    """Run a generator to its end. Raises `RuntimeError` with its message."""
    command = [sys.executable, "-m", "loadtest.bench.generator", json.dumps(asdict(job))]
    process = spawn(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = process.communicate(timeout=_PATIENCE_SECONDS)
    if process.returncode:
        raise RuntimeError(f"the load generator failed: {errors.strip()}")
    return Saturated(**json.loads(output))


def warm_up(address: str, sizes: Sequence[int]) -> None:
    """Run each load once, so that the JVM compiles it, and fill the topics for Fetch."""
    for size in sizes:
        saturated(Job(address, PRODUCE_TOPIC, PARTITIONS, size, connections=8, depth=5, seconds=2.0))
    for size in FETCH_SIZES:
        fill = Job(address, fetch_topic(size), PARTITIONS, size // 4, connections=PARTITIONS, depth=1, seconds=0.3)
        saturated(fill)
        saturated(replace(fill, api="fetch", fetch_topic=fill.topic, size=size, seconds=1.0))


def warm_up_ways(ways: Mapping[str, Way], sizes: Sequence[int]) -> None:
    """Run each load once through each way, since Kroxylicious compiles at run time."""
    for way in ways.values():
        for size in sizes:
            saturated(_job(way, Cell("produce", size, 8, 5), 1.0))


def measure(
    ways: Mapping[str, Way], cells: Sequence[Cell], rounds: int, turn: float, report: Callable[[Cell, Samples], None]
) -> dict[Cell, Samples]:
    """Measure each cell for `rounds` turns of `turn` seconds for each way. Calls `report` after each cell."""
    results: dict[Cell, Samples] = {}
    for cell in cells:
        samples: Samples = {name: [] for name in ways}
        for number in range(rounds):
            for name in in_turns(list(ways), number):
                samples[name].append(saturated(_job(ways[name], cell, turn)))
        results[cell] = samples
        report(cell, samples)
    return results


def fetch_topic(size: int) -> str:
    return f"{FETCH_TOPIC}-{size}"


def in_turns(names: list[str], number: int) -> list[str]:
    """Every other round runs backwards, so that no way always follows the same one."""
    return names if number % 2 == 0 else names[::-1]


def _job(way: Way, cell: Cell, seconds: float) -> Job:
    return Job(
        way.address,
        PRODUCE_TOPIC,
        PARTITIONS,
        cell.size,
        api="fetch" if cell.api == "fetch" else "mixed" if cell.api == "mixed" else "produce",
        fetch_topic=fetch_topic(cell.size),
        mode=CONNECT if cell.api == CONNECT else "saturate",
        connections=cell.connections,
        depth=cell.depth,
        seconds=seconds,
        # With large requests, the first requests in flight cost CPU before any response counts, so the warm-up is longer.
        warmup=0.3 if cell.size < _LARGE else 1.0,
        pids=way.pids,
        ca="" if way.tls is None else str(way.tls.ca),
    )
