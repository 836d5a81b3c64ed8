"""Runs the script at the broker and at Weir, and compares each step."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from loadtest.scenarios.mutations.raw import Answer, RawAdmin
from loadtest.scenarios.mutations.script import NUM_PARTITIONS, RATE, SAMPLES, SCENARIOS, THROTTLED, Scenario, Side, Steps
from loadtest.testkit.gateway_process import CompiledGateway
from loadtest.testkit.kafka import KafkaCluster

TOLERANCE = 0.1
JAVA = "java"
JAVA_RATE = 2.0
_JAVA_CLIENTS = 2

KAFKA_PROPERTIES = {
    "num.partitions": str(NUM_PARTITIONS),
    "controller.quota.window.num": str(SAMPLES),
    "controller.quota.window.size.seconds": "1",
}


@dataclass(frozen=True)
class Step:
    """One step on both sides: the responses, and the seconds since the first response of its scenario there.

    `broker_errors` and `weir_errors` are the topics of the responses without the prefix of each side.
    """

    scenario: str
    number: int
    broker: Answer
    weir: Answer
    broker_since: float
    weir_since: float
    broker_errors: list[tuple[str, int, str | None]]
    weir_errors: list[tuple[str, int, str | None]]

    @property
    def same_topics(self) -> bool:
        """True if each topic has the same error and message. If KRaft's order depends on a hash, only their counts must
        match.
        """
        if self.broker_errors == self.weir_errors:
            return True
        one, two = (sorted(errors) for errors in (self.broker_errors, self.weir_errors))
        if one == two:
            return "create" not in self.scenario
        return self.scenario == "delete_several" and sorted(e[1:] for e in one) == sorted(e[1:] for e in two)

    @property
    def same_time(self) -> bool:
        """True if both sides throttle until the same time within a tenth, or neither throttles.

        Earlier steps take different times on both sides. So this compares the end of the throttle time, counted from the
        scenario's first response.
        """
        if not self.broker.throttle_time_ms or not self.weir.throttle_time_ms:
            return self.broker.throttle_time_ms == self.weir.throttle_time_ms
        return abs(self.difference) <= TOLERANCE

    @property
    def difference(self) -> float:
        """The part by which Weir's throttle time ends later, counted from the scenario's first response; 0.0 if there is
        none.
        """
        if not self.broker.throttle_time_ms:
            return 0.0
        one = self.broker_since + self.broker.throttle_time_ms / 1000
        return (self.weir_since + self.weir.throttle_time_ms / 1000) / one - 1


def compare(broker: str, weir: str, scenarios: Sequence[Scenario] = SCENARIOS) -> list[Step]:
    """Run the script step by step, first at the broker and then at Weir. Each scenario's client has its quota on both sides."""
    steps: list[Step] = []
    for scenario in scenarios:
        sides = Side(broker, broker_client(scenario)), Side(weir, weir_client(scenario))
        scripts = [_timed(scenario(side)) for side in sides]
        begun: list[float] = []
        for number, (one, two) in enumerate(zip(*scripts, strict=True), 1):
            begun = begun or [one[1], two[1]]
            since = [at - first for (_, at), first in zip((one, two), begun, strict=True)]
            topics = [_plain(side, answer) for side, (answer, _) in zip(sides, (one, two), strict=True)]
            steps.append(Step(scenario.__name__, number, one[0], two[0], *since, *topics))
    return steps


def _plain(side: Side, answer: Answer) -> list[tuple[str, int, str | None]]:
    return [
        (side.plain(topic), error, None if message is None else message.replace(side.client_id, ""))
        for topic, error, message in answer.topics
    ]


def _timed(steps: Steps) -> Iterator[tuple[Answer, float]]:
    return ((answer, time.monotonic()) for answer in steps)


def broker_client(scenario: Scenario) -> str:
    """The client-id with the broker's own quota."""
    return f"broker-{scenario.__name__}"


def weir_client(scenario: Scenario) -> str:
    """The client-id with Weir's quota."""
    return f"weir-{scenario.__name__}"


def set_broker_quotas(kafka: str, client_ids: Iterable[str], rate: float = RATE) -> None:
    """Set the quota of these clients at the broker."""
    with RawAdmin(kafka, "admin") as admin:
        for client_id in client_ids:
            admin.set_quota(client_id, rate)


def weir_entities(client_ids: Iterable[str], rate: float = RATE) -> list[dict[str, object]]:
    """The rows of `quotas.entities` with the same quota at Weir."""
    return [{"client-id": client_id, "controller_mutation_rate": rate} for client_id in client_ids]


class Stage:
    """A broker and a gateway in front of it. `stack` stops them. Raises `NodeError`, `JarsMissingError`, `GatewayError`."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        kafka = stack.enter_context(KafkaCluster(directory / "kafka", properties=KAFKA_PROPERTIES))
        java = [f"{JAVA}-{number}" for number in range(_JAVA_CLIENTS)]
        entities = weir_entities(map(weir_client, SCENARIOS)) + weir_entities((f"weir-{name}" for name in java), JAVA_RATE)
        gateway = stack.enter_context(
            CompiledGateway(directory / "weir", kafka.bootstrap_servers, {"quotas": {"entities": entities}})
        )
        set_broker_quotas(kafka.bootstrap_servers, map(broker_client, SCENARIOS))
        set_broker_quotas(kafka.bootstrap_servers, (f"broker-{name}" for name in java), JAVA_RATE)
        self.broker, self.weir = kafka.bootstrap_servers, gateway.bootstrap_servers


def rejected(answer: Answer) -> int:
    """The number of topics that the quota rejected."""
    return sum(error == THROTTLED for error in answer.errors.values())
