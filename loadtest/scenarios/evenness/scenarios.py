"""The clients, their quotas, and the program that enforces each quota."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from loadtest.testkit.kafka import Tool, start_tool

MIB = 1024 * 1024
KIB = 1024
PRODUCE, FETCH = "produce", "fetch"
BROKER, WEIR, WINDOW = "broker", "weir", "weir window"
WAYS = (BROKER, WEIR, WINDOW)
"""The broker's own quota without Weir; Weir with its default algorithm; Weir with Kafka's algorithm."""

SOURCE_TOPIC = "source"
RECORD_BYTES = 1024
_BURST_SECONDS = 10


@dataclass(frozen=True)
class Scenario:
    """A number of Kafka's own performance tools (`clients`) that share one quota in bytes/s."""

    api: str
    clients: int
    quota: int

    def __str__(self) -> str:
        tool = "producer" if self.api == PRODUCE else "consumer"
        who = f"one {tool}" if self.clients == 1 else f"{self.clients} {tool}s"
        return f"{who}, {size(self.quota)}/s"

    @property
    def quota_key(self) -> str:
        """The quota's name in the configuration of Kafka and of Weir."""
        return "producer_byte_rate" if self.api == PRODUCE else "consumer_byte_rate"


@dataclass(frozen=True)
class Run:
    """A scenario in one of the `WAYS`."""

    scenario: Scenario
    way: str

    @property
    def name(self) -> str:
        """The client-id, which is the quota's entity, and the topic."""
        scenario = self.scenario
        return f"{self.way.replace(' ', '-')}-{scenario.api}-{scenario.clients}-{scenario.quota}"


def size(count: int) -> str:
    """A text such as 64 KiB or 1 MiB."""
    return f"{count // MIB} MiB" if count >= MIB else f"{count // KIB} KiB"


# All ways of a batch run at the same time, so that noise affects all of them alike.
BATCHES = (
    tuple(Scenario(api, 1, quota) for api, quota in product((PRODUCE, FETCH), (MIB, 64 * KIB))),
    (Scenario(PRODUCE, 4, MIB), Scenario(PRODUCE, 4, 64 * KIB)),
    (Scenario(FETCH, 4, MIB), Scenario(FETCH, 4, 64 * KIB)),
)


def runs(scenarios: Iterable[Scenario]) -> list[Run]:
    """Every scenario in every way."""
    return [Run(scenario, way) for scenario in scenarios for way in WAYS]


def start(run: Run, number: int, bootstrap_servers: str, seconds: float) -> Tool:
    """Start one client of a run: an unpaced tool with work for about `seconds` at its quota. Raises `JarsMissingError`."""
    scenario = run.scenario
    records = int((seconds + _BURST_SECONDS) * scenario.quota / scenario.clients / RECORD_BYTES)
    common = ["--bootstrap-server", bootstrap_servers, "--command-property", f"client.id={run.name}", "--print-metrics"]
    if scenario.api == PRODUCE:
        return start_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *(*common, "--topic", run.name, "--num-records", str(records)),
            *("--record-size", str(RECORD_BYTES), "--throughput", "-1"),
        )
    return start_tool(
        "org.apache.kafka.tools.ConsumerPerformance",
        # The tool stops if no record arrives for this time.
        *(*common, "--topic", SOURCE_TOPIC, "--num-records", str(records), "--timeout", "120000"),
        *("--group", f"{run.name}-{number}"),
    )
