"""The broker, the gateways and the clients, and one phase at a time."""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from loadtest.bench.generator import cpu_seconds
from loadtest.scenarios.evenness.sockets import ReceivedCounter
from loadtest.scenarios.replays import readers
from loadtest.scenarios.replays.latency import ALONE, BESIDE, ELSEWHERE, UNDIVIDED, Classes, Latency, Phase, latency
from loadtest.scenarios.replays.readers import Client, Tailed
from loadtest.testkit.gateway_process import GatewayProcess
from loadtest.testkit.kafka import KafkaCluster, run_tool

CAPACITY, LANE_RATE = 40_000_000, 20_000_000
MAX_LAG = 100_000
TAILS, REPLAYS = 10, 3
RECORD_BYTES = 1_024
STAMPED_PER_SECOND = 50.0
PHASE_SECONDS = {ALONE: 7.0, ELSEWHERE: 7.0, BESIDE: 15.0, UNDIVIDED: 12.0}
SETTLING_SECONDS = 1.5
"""The begin of each phase, not measured: the queues of resting replays fill up, or the burst passes."""

LANE, REST = "replays", "everybody"
_TOPIC, _TAIL = "events", "tail-"
_LEAST_SECONDS = 1.0
_LOOK_EVERY_SECONDS = 0.5
_WHOLE = {"name": "cluster", "consumer_byte_rate": CAPACITY}
_MATCH = [{"client-id": "*"}]
WITH_LANE: Mapping[str, Any] = {
    "groups": [
        _WHOLE,
        {
            "name": LANE,
            "parent": "cluster",
            "match": [{"catch_up": True, "max_lag_records": MAX_LAG}],
            "consumer_byte_rate": {"ceiling": LANE_RATE, "weight": 1},
        },
        {"name": REST, "parent": "cluster", "match": _MATCH, "consumer_byte_rate": {"weight": 4}},
    ]
}
WITHOUT_LANE: Mapping[str, Any] = {
    "groups": [_WHOLE, {"name": REST, "parent": "cluster", "match": _MATCH, "consumer_byte_rate": {"ceiling": LANE_RATE}}]
}


class Experiment:
    """Two gateways with the same lane: all tail readers are at the first. `stack` stops everything."""

    def __init__(self, stack: ExitStack, directory: Path, kind: type[GatewayProcess], megabytes: int) -> None:
        """Raises the errors of Kafka, the gateways and the clients."""
        self._stack = stack
        self._records = megabytes * 1_000_000 // RECORD_BYTES
        cluster = stack.enter_context(KafkaCluster(directory / "kafka"))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic(_TOPIC, 1, 1)])[_TOPIC].result(30)
        run_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--bootstrap-server", cluster.bootstrap_servers, "--topic", _TOPIC, "--throughput", "-1"),
            *("--num-records", str(self._records), "--record-size", str(RECORD_BYTES)),
        )
        self.gateway, other = (
            stack.enter_context(kind(directory / name, cluster.bootstrap_servers, {"quotas": WITH_LANE}))
            for name in ("weir", "other")
        )
        self._received = ReceivedCounter([*self.gateway.ports, *other.ports])
        self._received.start()
        stack.callback(self._received.stop)
        arguments = (self.gateway.bootstrap_servers, _TOPIC, TAILS, STAMPED_PER_SECOND)
        self.tails = stack.enter_context(Client("the tail readers' process", readers.tail, *arguments))
        self.tails.said()
        self.replays = self.new_replays("replay", self.gateway)
        self.others = self.new_replays("other", other)
        self._running: Sequence[Client] = ()
        self._pids = {"broker": (cluster.brokers[0].pid,), "gateways": (self.gateway.pid, other.pid)}
        self._samples: list[tuple[int, int]] = []
        self.tailed = Tailed([], 0, 0)
        self.phases: list[Phase] = []
        self.looks: Counter[str] = Counter()
        """The groups of the tail readers' connections at each look."""

    def new_replays(self, name: str, gateway: GatewayProcess) -> list[Client]:
        """Replays that wait for their first phase."""
        names = [f"{name}-{number}" for number in range(REPLAYS)]
        arguments = (self._records, MAX_LAG)
        return [
            self._stack.enter_context(Client(each, readers.replay, gateway.bootstrap_servers, _TOPIC, each, *arguments))
            for each in names
        ]

    def play(self, kind: str, replays: Sequence[Client] = ()) -> bool:
        """Run one phase with these replays alone. It ends early, and returns True, once all of them have caught up."""
        for each in self._running:
            each.command(readers.REST)
        for each in replays:
            each.command(readers.RUN)
        self._running = replays
        time.sleep(SETTLING_SECONDS)
        begin, before, cpu = time.monotonic(), self.received(replays), self._cpu(replays)
        done, over = False, begin + PHASE_SECONDS[kind] - SETTLING_SECONDS
        while not done and time.monotonic() < over:
            time.sleep(_LOOK_EVERY_SECONDS)
            self.looks.update(group for client_id, _, group in self.connections() if client_id.startswith(_TAIL))
            done = len(replays) > 0 and all(each.has_said() for each in replays)
        seconds = time.monotonic() - begin
        processors = {name: round((used - cpu[name]) / seconds, 3) for name, used in self._cpu(replays).items()}
        if seconds >= _LEAST_SECONDS:
            self.phases.append(Phase(kind, begin, begin + seconds, self.received(replays) - before, processors))
        self.look_at_tails()
        return done

    def end_replays(self) -> None:
        for each in (*self.replays, *self.others):
            each.command(readers.END)
        self._running = ()

    def look_at_tails(self) -> None:
        """Get the tail readers' new samples. Records that are on their way come with the next call."""
        self.tails.command(readers.REPORT)
        self.tailed = self.tails.said()
        self._samples += self.tailed.samples

    def latency(self, *phases: Phase) -> Latency:
        return latency(self._samples, phases)

    def received(self, clients: Sequence[Client]) -> int:
        """The bytes that these processes have received from the gateways, at the last sample."""
        series = self._received.series([client.pid for client in clients])
        return series[-1][1] if series else 0

    def connections(self) -> list[tuple[str, str, str]]:
        """The client-id, address and group of each open connection to the first gateway."""
        rows = json.loads(self.gateway.get("/api/connections?limit=1000"))["rows"]
        return [(row["client_id"] or "", row["address"], row["group"] or "") for row in rows]

    def charged(self) -> Classes:
        """The bytes that the first gateway has charged to the lane and to the other group."""
        rows = [row for row in self.gateway.usage() if row["kind"] == "fetch"]
        lane, others = (sum(row["amount_total"] for row in rows if row.get("group") == group) for group in (LANE, REST))
        return Classes(lane, others)

    def _cpu(self, replays: Sequence[Client]) -> dict[str, float]:
        pids = {**self._pids, "tail readers": (self.tails.pid,), "replays": tuple(each.pid for each in replays)}
        return {name: cpu_seconds(each) for name, each in pids.items()}
