"""Sets up one broker, a gateway for each algorithm, and the instruments, and runs one batch of clients at a time."""

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from loadtest.scenarios.evenness.logs import LogCounter, Series
from loadtest.scenarios.evenness.scenarios import BROKER, PRODUCE, RECORD_BYTES, SOURCE_TOPIC, WEIR, WINDOW, Run, start
from loadtest.scenarios.evenness.sockets import ReceivedCounter
from loadtest.testkit.gateway_process import CompiledGateway
from loadtest.testkit.kafka import KafkaCluster, Tool, run_tool, start_tool

_TOOLS = "org.apache.kafka.tools."
_START_SECONDS = 30.0
_FINISH_SECONDS = 15.0
_METRIC = re.compile(r"\b(?:produce|fetch)-throttle-time-(avg|max)\S*\s*:\s*([\d.]+)")


@dataclass
class Watched:
    """The measurements of a run: (seconds, bytes so far), and its clients' output."""

    run: Run
    series: Series
    connections: int
    throttle_avg: list[float] = field(default_factory=list)
    throttle_max: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Stage:
    """Runs until `stack` is closed."""

    def __init__(self, stack: ExitStack, directory: Path, runs: Sequence[Run]) -> None:
        """Raises `NodeError`, `JarsMissingError`, `GatewayError`, `ToolError`, `InstrumentMissingError`."""
        kafka = stack.enter_context(KafkaCluster(directory))
        self._servers = {BROKER: kafka.bootstrap_servers}
        ports = [node.port for node in kafka.brokers]
        algorithms: Mapping[str, dict[str, str]] = {WEIR: {}, WINDOW: {"algorithm": "window"}}
        for way, quotas in algorithms.items():
            entities = [{"client-id": run.name, run.scenario.quota_key: run.scenario.quota} for run in runs if run.way == way]
            folder = directory / way.replace(" ", "-")
            gateway = stack.enter_context(
                CompiledGateway(folder, kafka.bootstrap_servers, {"quotas": {"entities": entities, **quotas}})
            )
            self._servers[way] = gateway.bootstrap_servers
            ports += gateway.ports
        topics = [run.name for run in runs if run.scenario.api == PRODUCE]
        self._received = ReceivedCounter(ports)
        self._appended = LogCounter(kafka.brokers[0].directory / "data", topics)
        for sampler in (self._received, self._appended):
            sampler.start()
            stack.callback(sampler.stop)
        self._set_quotas([run for run in runs if run.way == BROKER])
        self._create_topics([SOURCE_TOPIC, *topics])

    def fill(self, count: int) -> None:
        """Write `count` bytes for consumers to read. Raises `ToolError`."""
        run_tool(
            f"{_TOOLS}ProducerPerformance",
            *("--bootstrap-server", self._servers[BROKER], "--topic", SOURCE_TOPIC, "--throughput", "-1"),
            *("--num-records", str(count // RECORD_BYTES), "--record-size", str(RECORD_BYTES)),
        )

    def play(self, batch: Sequence[Run], seconds: float, spare: float) -> list[Watched]:
        """Run a batch until each run has `seconds` of measurements and its clients have ended.

        Clients have work for `spare` seconds more. A client that still runs after that is stopped.
        """
        tools: dict[Run, list[Tool]] = {}
        try:
            for run in batch:
                servers = self._servers[run.way]
                tools[run] = [start(run, number, servers, seconds + spare) for number in range(run.scenario.clients)]
            deadline = time.monotonic() + _START_SECONDS + seconds + spare + _FINISH_SECONDS
            while time.monotonic() < deadline and any(
                tool.process.poll() is None for every in tools.values() for tool in every
            ):
                time.sleep(0.5)
        finally:
            for every in tools.values():
                for tool in every:
                    tool.stop(timeout=5.0)
        return [self._watched(run, every) for run, every in tools.items()]

    def _watched(self, run: Run, tools: Sequence[Tool]) -> Watched:
        pids = [tool.process.pid for tool in tools]
        series = self._appended.series(run.name) if run.scenario.api == PRODUCE else self._received.series(pids)
        watched = Watched(run, series, self._received.connections(pids))
        for tool in tools:
            said = "\n".join(tool)
            for kind, value in _METRIC.findall(said):
                (watched.throttle_avg if kind == "avg" else watched.throttle_max).append(float(value))
            lines = [*said.splitlines(), *tool.errors]
            watched.warnings += [line for line in lines if "WARN" in line or "ERROR" in line or "Exception" in line]
        return watched

    def _set_quotas(self, runs: Sequence[Run]) -> None:
        """Set the broker's own quotas, as an operator does."""
        changes = [
            start_tool(
                "kafka.admin.ConfigCommand",
                *("--bootstrap-server", self._servers[BROKER], "--alter", "--entity-type", "clients"),
                *("--entity-name", run.name, "--add-config", f"{run.scenario.quota_key}={run.scenario.quota}"),
            )
            for run in runs
        ]
        for change in changes:
            change.finish()

    def _create_topics(self, names: Sequence[str]) -> None:
        admin = AdminClient({"bootstrap.servers": self._servers[BROKER]})
        for created in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
            created.result()
