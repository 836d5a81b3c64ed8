"""`python -m loadtest.scenarios.migration`: quotas move from three brokers to Weir and back, under load.

The brokers have 20 quotas of all kinds. Producers that never wait, one for each broker, share one quota. The steps are those of
the guide: import, shadow, enforce, lift, restore. The rates are those of the brokers' logs, as parts of the old limit. That is
the rate of one broker times three. The tool kafka-configs describes the quotas before and after.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from gateway.migration.access import addresses, by_properties
from gateway.migration.broker_admin import BrokerAdmin
from gateway.migration.broker_quotas import entity_of
from loadtest.bench.report import machine
from loadtest.scenarios.evenness.logs import Sampler, Series, log_bytes
from loadtest.testkit.fleet import CLIENT_ID, UnpacedProducer
from loadtest.testkit.gateway_process import CompiledGateway
from loadtest.testkit.kafka import KafkaCluster, run_tool
from loadtest.testkit.paths import RESULTS, RUN

RESULT_FILE = RESULTS / "migration.json"
BROKERS = 3
RATE = 500_000
"""The quota of the producers at each broker, in bytes per second."""

LIMIT = BROKERS * RATE

WINDOW_SECONDS = 10.0
"""Kafka compares the mean of about this time with the quota (`quota.window.num` less one)."""

WINDOWS: Mapping[str, Mapping[str, int]] = {
    "burst of 10 s (default)": {"samples": 11, "seconds": 1},
    "burst of 1 s": {"samples": 2, "seconds": 1},
}
"""`quotas.window` of each run."""

_P, _C, _M, _S, _I = (
    "producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate", "request_percentage", "connection_creation_rate",
)  # fmt: skip
QUOTAS: Sequence[tuple[Mapping[str, str | None], Mapping[str, float]]] = (
    ({"user": "alice"}, {_P: 1e6, _C: 2e6, _S: 50.0}),
    # Producers that lost their own quota before this one would be muted for hours.
    ({"user": None}, {_P: 10.0, _C: 6e7, _M: 1000.0}),
    ({"user": "bob"}, {_M: 2.5}),
    ({"client-id": CLIENT_ID}, {_P: 3e6, _C: 4e6}),
    ({"client-id": None}, {_P: 7e7, _S: 400.0}),
    ({"user": "alice", "client-id": CLIENT_ID}, {_P: 1e5}),
    ({"user": "alice", "client-id": None}, {_C: 2e5}),
    ({"user": None, "client-id": "mirror"}, {_P: 3e5}),
    ({"user": None, "client-id": None}, {_C: 8e7}),
    ({"user": "ANONYMOUS", "client-id": CLIENT_ID}, {_P: float(RATE)}),
    ({"ip": "10.1.2.3"}, {_I: 20.0}),
    ({"ip": "2001:db8::1"}, {_I: 30.0}),
    ({"ip": "localhost"}, {_I: 500.0}),
    ({"ip": None}, {_I: 1000.0}),
)


@dataclass(frozen=True, slots=True)
class Step:
    """Rates as parts of the old limit: the mean, and the highest of any second and of any ten seconds that end in the step."""

    name: str
    seconds: float
    mean: float
    highest_second: float
    highest_window: float


@dataclass(frozen=True, slots=True)
class Move:
    """One way to Weir and back. `same`: kafka-configs describes the same quotas before and after."""

    name: str
    quotas: int
    left_at_brokers: int
    same: bool
    steps: tuple[Step, ...]


class LogTotal(Sampler):
    """Samples the sum of the only partitions of several topics, each on a broker of its own."""

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__()
        self.series: Series = []
        self._folders = folders

    def sample(self, now: float) -> None:
        self.series.append((now, sum(map(log_bytes, self._folders))))


def rates(series: Series, begin: float, end: float, width: float) -> list[float]:
    """Bytes per second of every stretch of at least `width` seconds that ends between `begin` and `end`."""
    found = []
    first = 0
    for now, total in series:
        while first + 1 < len(series) and series[first + 1][0] <= now - width:
            first += 1
        then, before = series[first]
        if begin <= now <= end and now - then >= width:
            found.append((total - before) / (now - then))
    return found


def step(name: str, series: Series, begin: float, end: float) -> Step:
    inside = [sample for sample in series if begin <= sample[0] <= end]
    (first, before), (last, total) = inside[0], inside[-1]
    return Step(
        name=name,
        seconds=round(end - begin, 1),
        mean=round((total - before) / (last - first) / LIMIT, 3),
        highest_second=round(max(rates(series, begin, end, 1.0)) / LIMIT, 3),
        highest_window=round(max(rates(series, begin, end, WINDOW_SECONDS), default=0.0) / LIMIT, 3),
    )


def weir(*arguments: str) -> str:
    """Run a command below `weir quotas`, print its last line and return its output. Raises CalledProcessError."""
    command = [sys.executable, "-m", "gateway", "quotas", *arguments]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    print(f"  weir quotas {arguments[0]}: {found.stdout.rstrip().splitlines()[-1]}", flush=True)
    return found.stdout


def described(servers: str) -> list[str]:
    """The output of kafka-configs for all entity types. The values of one entity have the order of a hash table."""
    lines = []
    for kinds in (["users"], ["clients"], ["ips"], ["users", "clients"]):
        types = [part for kind in kinds for part in ("--entity-type", kind)]
        for line in run_tool("kafka.admin.ConfigCommand", "--bootstrap-server", servers, "--describe", *types).splitlines():
            entity, _, values = line.partition(" are ")
            lines.append(f"{entity} are {', '.join(sorted(values.split(', ')))}")
    return sorted(lines)


async def set_quotas(servers: str) -> None:
    async with BrokerAdmin(by_properties(addresses(servers), None)) as admin:
        quotas = {entity_of(dict(parts)): dict(values) for parts, values in QUOTAS}
        await admin.alter(quotas)
        await admin.wait_until_applied(await admin.cluster(), quotas)


def move(cluster: KafkaCluster, directory: Path, name: str, seconds: float) -> Move:
    """Move the quotas to a gateway of its own and back, with `seconds` for each step."""
    servers = cluster.bootstrap_servers
    topics = [f"{directory.name}-{broker}" for broker in range(BROKERS)]
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_topics(
        [
            NewTopic(topic, 1, replica_assignment=[[broker]], config={"min.insync.replicas": "1"})
            for broker, topic in enumerate(topics)
        ]
    ).values():
        created.result(60)
    before = described(servers)
    window: dict[str, Any] = {"window": dict(WINDOWS[name])}
    gateway = CompiledGateway(directory, servers, {"quotas": window})
    config = ["--config", str(gateway.config_file), "--bootstrap-server", servers]
    saved = directory / "restore.json"
    log = LogTotal([node.directory / "data" / f"{topic}-0" for node, topic in zip(cluster.brokers, topics, strict=True)])
    marks: list[tuple[str, float]] = []

    def begin(title: str) -> None:
        marks.append((title, time.monotonic()))
        print(f"  {title}", flush=True)

    def apply(quotas: Mapping[str, Any]) -> None:
        version = json.loads(gateway.get("/api/config"))["version"]
        gateway.write_config({**gateway.config, "quotas": {**quotas, **window}})
        while json.loads(gateway.get("/api/config"))["version"] == version:
            time.sleep(0.1)

    with ExitStack() as stack:
        stack.enter_context(gateway)
        log.start()
        begin("brokers alone: the first burst")
        for topic in topics:
            stack.callback(UnpacedProducer(gateway.bootstrap_servers, topic).close)
        time.sleep(seconds)
        begin("brokers alone")
        time.sleep(seconds)
        begin("import, shadow: Weir only measures")
        section = yaml.safe_load(weir("import", *config))["quotas"]
        apply({**section, "enforce": False})
        time.sleep(seconds)
        begin("enforce: brokers and Weir")
        apply(section)
        time.sleep(seconds)
        begin("lift, then Weir alone")
        weir("lift", *config, "--admin", gateway.admin, "--restore-file", str(saved), "--yes")
        time.sleep(seconds)
        begin("restore, then brokers and Weir")
        left = described(servers)
        weir("restore", str(saved))
        time.sleep(seconds)
        end = time.monotonic()
    log.stop()
    ends = [mark for _, mark in marks[1:]] + [end]
    steps = [step(title, log.series, start, stop) for (title, start), stop in zip(marks, ends, strict=True)]
    return Move(name, sum(len(values) for _, values in QUOTAS), len(left), described(servers) == before, tuple(steps))


def table(moves: Sequence[Move]) -> str:
    """The figures in Markdown."""
    lines = []
    for each in moves:
        same = "the same" if each.same else "DIFFERENT"
        lines += [
            f"{each.name}: {each.quotas} quotas, {same} before and after; {each.left_at_brokers} lines while they are lifted",
            "",
            "| step | seconds | mean | highest second | highest 10 s |",
            "|---|---|---|---|---|",
            *(
                f"| {one.name} | {one.seconds:.0f} | {one.mean:.3f} | {one.highest_second:.3f} | {one.highest_window:.3f} |"
                for one in each.steps
            ),
            "",
        ]
    return "\n".join(lines)


def main() -> int:
    """Run the scenario and print the table; returns 1 if the quotas differ afterwards."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.migration", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="duration of a step; below 15, no results are written")
    seconds = parser.parse_args().seconds
    RUN.mkdir(exist_ok=True)
    moves = []
    with (
        tempfile.TemporaryDirectory(prefix="migration-", dir=RUN) as name,
        KafkaCluster(Path(name) / "kafka", BROKERS) as cluster,
    ):
        asyncio.run(set_quotas(cluster.bootstrap_servers))
        for number, window in enumerate(WINDOWS):
            print(window, flush=True)
            moves.append(move(cluster, Path(name) / f"move-{number}", window, seconds))
    print(table(moves))
    if seconds >= 15.0:
        RESULT_FILE.write_text(json.dumps({"machine": machine(), "moves": [asdict(each) for each in moves]}, indent=1) + "\n")
    return int(not all(each.same for each in moves))


if __name__ == "__main__":
    sys.exit(main())
