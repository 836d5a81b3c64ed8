"""Groups that share 8 MB/s at two gateways in front of one broker: `python -m loadtest.scenarios.fair_share`.

Unpaced producers (librdkafka) belong to a group by their client-id. Each case is a reload of the running gateways. Then one
group with a guarantee starts and stops again and again, and at last one gateway is killed. The figures count the bytes in the
topics' logs.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from loadtest.bench.report import machine
from loadtest.scenarios.evenness.logs import LogCounter
from loadtest.testkit.fleet import UnpacedProducer, start_fleet
from loadtest.testkit.gateway_process import CompiledGateway, GatewayProcess
from loadtest.testkit.kafka import KafkaCluster
from loadtest.testkit.paths import RESULTS, RUN

RESULT_FILE = RESULTS / "fair-share.json"
CAPACITY = 8_000_000
TOPICS = ("a", "b", "c")
SETTLING_SECONDS = 5
MEASURED_SECONDS = 10
CHANGES = 20
CHANGE_SECONDS = 6

_KEY = "producer_byte_rate"
_WINDOW = {"samples": 2, "seconds": 1}
Numbers = Mapping[str, float]


@dataclass(frozen=True)
class Case:
    """The numbers of the groups below the whole, their clients' own rates, and the parts that they should get."""

    name: str
    groups: Mapping[str, Numbers]
    expected: Mapping[str, float]
    rates: Mapping[str, int]
    inner: Numbers | None = None
    """The numbers of a group between the whole and `a`."""

    def quotas(self) -> dict[str, Any]:
        groups: list[dict[str, Any]] = [{"name": "whole", _KEY: CAPACITY}]
        if self.inner is not None:
            groups.append({"name": "inner", "parent": "whole", _KEY: dict(self.inner)})
        for name, numbers in self.groups.items():
            parent = "inner" if self.inner is not None and name != "c" else "whole"
            match = [{"client-id": f"{name}-*"}]
            groups.append({"name": name, "parent": parent, "match": match, _KEY: dict(numbers)})
        clients = [(f"{name}-{number}", rate // 2) for name, rate in self.rates.items() for number in (0, 1)]
        entities = [{"client-id": client_id, _KEY: rate} for client_id, rate in clients]
        return {"groups": groups, "entities": entities, "window": _WINDOW}


def _case(name: str, groups: Mapping[str, Numbers], expected: Mapping[str, float], **rest: Any) -> Case:  # noqa: ANN401
    return Case(name, groups, expected, rest.get("rates", {}), rest.get("inner"))


ONE: Numbers = {"weight": 1}
THREE: Mapping[str, Numbers] = {"a": ONE, "b": ONE, "c": ONE}
GUARANTEED: Mapping[str, Numbers] = {"a": ONE, "b": {"weight": 1, "guarantee": CAPACITY // 2}}
CASES = (
    _case("1:1:1, b wants 50/120, c wants 10/120", THREE, {"a": 60 / 120, "b": 50 / 120, "c": 10 / 120},
          rates={"b": CAPACITY * 50 // 120, "c": CAPACITY * 10 // 120}),
    _case("3:1", {"a": {"weight": 3}, "b": ONE}, {"a": 0.75, "b": 0.25}),
    _case("1:1, b has the guarantee 0.8", {"a": ONE, "b": {"weight": 1, "guarantee": CAPACITY * 8 // 10}},
          {"a": 0.1, "b": 0.9}),
    _case("1:1, a has the ceiling 0.3", {"a": {"weight": 1, "ceiling": CAPACITY * 3 // 10}, "b": ONE}, {"a": 0.3, "b": 0.7}),
    _case("3:1:1, b is idle", {"a": {"weight": 3}, "b": ONE, "c": ONE}, {"a": 0.75, "c": 0.25}),
    _case("inner:c = 2:1, below it a:b = 1:1, b is idle", THREE, {"a": 2 / 3, "c": 1 / 3},
          inner={"weight": 2}),
)  # fmt: skip


@dataclass(frozen=True)
class CaseResult:
    """Parts of the capacity over the measured seconds. `off` is the largest deviation of a group from its part."""

    name: str
    expected: Mapping[str, float]
    found: Mapping[str, float]
    off: float
    whole: float
    lowest_second: float
    highest_second: float


@dataclass(frozen=True)
class ChangesResult:
    """Parts of the capacity while a group with a guarantee of one half starts and stops.

    `after_start` has the part of the group that started, and `after_stop` that of the other group after a stop. Each is the
    average of two seconds, two seconds after the change.
    """

    after_start: Sequence[float]
    after_stop: Sequence[float]
    lowest_second: float
    highest_second: float
    lowest_five_seconds: float
    highest_five_seconds: float
    seconds: Sequence[Mapping[str, float]]


class Experiment:
    """The cluster, two gateways and their producers: one for each group at each gateway. Each group has a topic."""

    def __init__(
        self, stack: ExitStack, directory: Path, kind: type[GatewayProcess], first: Case, topics: Sequence[str] = TOPICS
    ) -> None:
        cluster = stack.enter_context(KafkaCluster(directory / "kafka", 1))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        for created in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
            created.result(30)
        config = {"quotas": first.quotas()}
        self.gateways = start_fleet(stack, kind, directory, cluster.bootstrap_servers, 2, config)
        self._counter = LogCounter(cluster.brokers[0].directory / "data", topics)
        self._counter.start()
        stack.callback(self._counter.stop)
        self._producers: dict[str, list[UnpacedProducer]] = {}
        self.trouble = 0
        stack.callback(lambda: self.run([]))

    def run(self, groups: Sequence[str]) -> None:
        """Let the producers of these groups run, and no others."""
        gone = [producer for group in self._producers if group not in groups for producer in self._producers[group]]
        self._producers = {group: own for group, own in self._producers.items() if group in groups}
        for producer in gone:
            producer.stop()
        for group in groups:
            if group not in self._producers:
                self._producers[group] = [
                    UnpacedProducer(gateway.bootstrap_servers, group, f"{group}-{number}")
                    for number, gateway in enumerate(self.gateways)
                ]
        for producer in gone:
            producer.close()
            self.trouble += producer.disconnects + producer.failed.total()

    def reload(self, case: Case) -> None:
        """Give both gateways another config, and wait until both have it."""
        for gateway in self.gateways:
            gateway.apply(quotas=case.quotas())

    def part(self, topic: str, begin: float, end: float) -> float:
        """The part of the capacity that went into a topic between two moments (monotonic)."""
        series = self._counter.series(topic)
        return (_bytes_at(series, end) - _bytes_at(series, begin)) / (end - begin) / CAPACITY

    def seconds(self, begin: float, count: int) -> list[dict[str, float]]:
        """The part of each topic in each second."""
        return [
            {topic: round(self.part(topic, begin + second, begin + second + 1), 3) for topic in TOPICS}
            for second in range(count)
        ]


def _bytes_at(series: Sequence[tuple[float, int]], moment: float) -> float:
    for (before, low), (after, high) in pairwise(series):
        if before <= moment <= after:
            return low + (high - low) * (moment - before) / (after - before)
    raise ValueError(f"no sample at {moment}")


def measured(experiment: Experiment, name: str, expected: Mapping[str, float]) -> CaseResult:
    """Measure from now on."""
    begin = time.monotonic()
    time.sleep(MEASURED_SECONDS + 0.6)
    found = {group: round(experiment.part(group, begin, begin + MEASURED_SECONDS), 4) for group in expected}
    whole = [sum(second.values()) for second in experiment.seconds(begin, MEASURED_SECONDS)]
    off = max(abs(found[group] - part) for group, part in expected.items())
    return CaseResult(
        name, expected, found, round(off, 4), round(sum(found.values()), 4), round(min(whole), 3), round(max(whole), 3)
    )


def changes(experiment: Experiment) -> ChangesResult:
    experiment.reload(_case("", GUARANTEED, {}))
    experiment.run(["a"])
    time.sleep(SETTLING_SECONDS)
    begin = time.monotonic()
    starts = []
    for number in range(CHANGES):
        starts.append(time.monotonic())
        experiment.run(["a"] if number % 2 else ["a", "b"])
        time.sleep(max(0.0, begin + (number + 1) * CHANGE_SECONDS - time.monotonic()))
    time.sleep(0.6)
    after = [round(experiment.part("a" if number % 2 else "b", start + 2, start + 4), 3) for number, start in enumerate(starts)]
    seconds = experiment.seconds(begin, CHANGES * CHANGE_SECONDS)
    whole = [sum(second.values()) for second in seconds]
    five = [sum(whole[first : first + 5]) / 5 for first in range(len(whole) - 4)]
    return ChangesResult(
        after[::2], after[1::2], round(min(whole), 3), round(max(whole), 3), round(min(five), 3), round(max(five), 3), seconds
    )


def killed(experiment: Experiment) -> CaseResult:
    """Kill a gateway under load, and measure ten seconds later."""
    case = CASES[1]
    experiment.reload(case)
    experiment.run(list(case.expected))
    time.sleep(SETTLING_SECONDS)
    experiment.gateways[1].process.kill()
    time.sleep(10)
    return measured(experiment, "3:1, 10 s after a gateway was killed", case.expected)


def run(kind: type[GatewayProcess], *, brief: bool, changes_alone: bool) -> dict[str, Any]:
    """`brief`: two cases and no further parts. `changes_alone`: no cases."""
    RUN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fair-share-", dir=RUN) as name, ExitStack() as stack:
        experiment = Experiment(stack, Path(name), kind, CASES[0])
        cases = []
        for case in () if changes_alone else CASES[:2] if brief else CASES:
            experiment.reload(case)
            experiment.run(list(case.expected))
            time.sleep(SETTLING_SECONDS)
            cases.append(asdict(measured(experiment, case.name, case.expected)))
            print(cases[-1], flush=True)
        if brief:
            return {"cases": cases}
        found = asdict(changes(experiment))
        print({key: value for key, value in found.items() if key != "seconds"}, flush=True)
        if changes_alone:
            return {"changes": found}
        trouble = experiment.trouble
        cases.append(asdict(killed(experiment)))
        print(cases[-1], flush=True)
        return {"machine": machine(), "cases": cases, "changes": found, "disconnects_and_failures": trouble}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.fair_share", description=__doc__)
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--brief", action="store_true", help="two cases alone; no results are written")
    part.add_argument("--changes", action="store_true", help="the starts and stops alone; no results are written")
    parser.add_argument("--interpreted", action="store_true", help="run this checkout, not the compiled build")
    options = parser.parse_args()
    results = run(
        GatewayProcess if options.interpreted else CompiledGateway, brief=options.brief, changes_alone=options.changes
    )
    if not (options.brief or options.changes):
        RESULT_FILE.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
