"""`python -m loadtest.scenarios.metadata_flood`: a client floods Metadata under `request_rates`; measures a bystander's p99.

The bystander produces all the time, and three conditions take turns in each round:

- quiet: the bystander alone.
- control: the flooding client sends to a process that reads as little as a muted connection, beside Weir. Another client
  sends to Weir as many requests as the flooding client may.
- flood: the flooding client sends to Weir.

The difference between control and quiet is due to the flooding client's share of the machine and to the requests that are
within the quota. The difference between flood and control is due to Weir.

Weir has a processor of its own. The clients have the others, and the broker may use all.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

import numpy as np
from rich.console import Console
from rich.table import Table

from loadtest.bench.estimate import Floats
from loadtest.bench.generator import Job, cpu_seconds, pin
from loadtest.bench.report import machine
from loadtest.bench.rounds import PRODUCE_TOPIC, broker, saturated
from loadtest.scenarios.metadata_flood.flooder import ALLOWED_PER_SECOND, CLIENT_ID, CONNECTIONS, Flooded, Flooder, StalledSink
from loadtest.scenarios.metadata_flood.steady_producer import SteadyProducer
from loadtest.scenarios.metadata_flood.tail_latency import ratio_of_p99
from loadtest.testkit.gateway_process import CompiledGateway, GatewayError, GatewayProcess
from loadtest.testkit.kafka import JarsMissingError, NodeError

QUIET, CONTROL, FLOOD = CONDITIONS = ("quiet", "control", "flood")

_SIZE = 1024
_WARM_UP_SECONDS, _SETTLE_SECONDS = 8.0, 0.5
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Turn:
    """One turn of a condition. The CPU times are parts of a processor; `metadata` are requests per second that Weir charged."""

    begun: float
    ended: float
    gateway: float
    broker: float
    metadata: float
    flooded: Flooded


@dataclass
class Measured:
    """By condition, one entry for each round. Latencies are in microseconds."""

    turns: dict[str, list[Turn]] = field(default_factory=lambda: {name: [] for name in CONDITIONS})
    latencies: dict[str, list[Floats]] = field(default_factory=dict)


class Stage:
    """The running processes."""

    def __init__(self, gateway: GatewayProcess, broker_pid: int, flooder: Flooder, sink: str) -> None:
        self._gateway = gateway
        self._broker_pid = broker_pid
        self._flooder = flooder
        weir = gateway.bootstrap_servers
        self._flooded = {CONTROL: (sink, weir), FLOOD: (weir, "")}

    def turn(self, condition: str, seconds: float) -> Turn:
        """Raises `RuntimeError` if the flood is not throttled, or does not end."""
        throttled, connections = self._usage("throttled_total"), self._usage("connections")
        if condition != QUIET:
            self._flooder.begin(*self._flooded[condition])
        if condition == FLOOD:
            self._wait(lambda: self._usage("throttled_total") >= throttled + 2 * CONNECTIONS, "is not throttled")
        time.sleep(_SETTLE_SECONDS)
        asked, charged = time.monotonic(), self._usage("amount_total")
        cpu = [cpu_seconds((pid,)) for pid in (self._gateway.pid, self._broker_pid)]
        begun = time.monotonic()
        time.sleep(seconds)
        ended = time.monotonic()
        cpu = [cpu_seconds((pid,)) - before for pid, before in zip((self._gateway.pid, self._broker_pid), cpu, strict=True)]
        charged = (self._usage("amount_total") - charged) / (time.monotonic() - asked)
        flooded = Flooded(0.0, 0.0) if condition == QUIET else self._flooder.end()
        self._wait(lambda: self._usage("connections") <= connections, "does not end")
        gateway, broker = (each / (ended - begun) for each in cpu)
        return Turn(begun, ended, gateway, broker, charged, flooded)

    def _usage(self, figure: str) -> float:
        rows = [row for row in self._gateway.usage() if row["kind"] == "request_rate.Metadata"]
        return float(sum(row[figure] for row in rows))

    def _wait(self, condition: Callable[[], bool], trouble: str) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the flood {trouble} in time")
            time.sleep(0.05)


def order(number: int) -> list[str]:
    """The conditions in a round: six rounds have all six orders."""
    turned = [CONDITIONS[(place + number) % len(CONDITIONS)] for place in range(len(CONDITIONS))]
    return turned[::-1] if number % 2 else turned


def measure(options: argparse.Namespace) -> Measured:
    """Raises `RuntimeError`."""
    processors = os.sched_getaffinity(0)
    of_weir = {min(processors)}
    clients = processors - of_weir or processors
    limits = {"quotas": {"entities": [{"client-id": CLIENT_ID, "request_rates": {"Metadata": ALLOWED_PER_SECOND}}]}}
    gateway_class = GatewayProcess if options.interpreted else CompiledGateway
    measured = Measured()
    with ExitStack() as stack:
        kafka, directory = stack.enter_context(broker())
        gateway = stack.enter_context(gateway_class(directory / "weir", kafka.bootstrap_servers, limits))
        sink = stack.enter_context(StalledSink(clients))
        flooder = stack.enter_context(Flooder(options.per_second, clients))
        # The broker's JVM compiles its code for both APIs.
        flooder.begin(kafka.bootstrap_servers)
        saturated(Job(gateway.bootstrap_servers, PRODUCE_TOPIC, 1, _SIZE, connections=4, depth=2, seconds=_WARM_UP_SECONDS))
        flooder.end()
        os.sched_setaffinity(0, clients)
        pin(gateway.pid, of_weir)
        stage = Stage(gateway, kafka.brokers[0].pid, flooder, sink.address())
        producer = stack.enter_context(SteadyProducer(gateway.bootstrap_servers, PRODUCE_TOPIC, _SIZE, options.rate, clients))
        for condition in CONDITIONS:
            stage.turn(condition, options.seconds)
        for number in range(options.rounds):
            for condition in order(number):
                measured.turns[condition].append(stage.turn(condition, options.seconds))
            print(f"round {number + 1} of {options.rounds}", flush=True)
        latencies = producer.stop()
    for condition, turns in measured.turns.items():
        measured.latencies[condition] = [latencies.between(turn.begun, turn.ended) * 1e6 for turn in turns]
    return measured


def figures(measured: Measured) -> dict[str, dict[str, float]]:
    """By condition. Latencies are in microseconds, CPU times in ms per second."""
    found = {}
    for condition, turns in measured.turns.items():
        samples = np.concatenate(measured.latencies[condition])
        p50, p99, p999 = (float(each) for each in np.percentile(samples, (50, 99, 99.9)))
        found[condition] = {
            "requests": len(samples),
            "p50": round(p50, 1),
            "p99": round(p99, 1),
            "p99.9": round(p999, 1),
            "gateway_cpu": round(fmean(turn.gateway for turn in turns) * 1000, 2),
            "broker_cpu": round(fmean(turn.broker for turn in turns) * 1000, 2),
            "offered_per_second": round(fmean(turn.flooded.offered for turn in turns)),
            "taken_per_second": round(fmean(turn.flooded.taken for turn in turns)),
            "charged_per_second": round(fmean(turn.metadata for turn in turns), 1),
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.metadata_flood", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, default=18, help="rounds of three turns; multiples of 6 are balanced (default: 18)"
    )
    parser.add_argument("--seconds", type=float, default=3.5, help="measured duration of a turn (default: 3.5)")
    parser.add_argument("--rate", type=float, default=500.0, help="the bystander's requests per second (default: 500)")
    parser.add_argument("--per-second", type=int, default=20_000, help="Metadata requests per second (default: 20000)")
    parser.add_argument("--interpreted", action="store_true", help="run the sources, without the compiled build")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds <= 0 or options.rate <= 0 or options.per_second < 1:
        parser.error("--rounds, --seconds, --rate and --per-second must be above 0")
    try:
        measured = measure(options)
    except (JarsMissingError, NodeError, GatewayError, RuntimeError) as error:
        print(f"metadata_flood: {error}", file=sys.stderr)
        return 1
    rows = figures(measured)
    table = Table(title=f"a bystander at {options.rate:g} requests/s of {_SIZE} bytes: latency in us, CPU in ms/s")
    table.add_column("")
    for condition in rows:
        table.add_column(condition, justify="right")
    for name in rows[QUIET]:
        table.add_row(name, *(f"{row[name]:,}" for row in rows.values()))
    Console().print(table)
    ratios = {
        f"{above} / {below}": ratio_of_p99(measured.latencies[above], measured.latencies[below])
        for above, below in ((FLOOD, QUIET), (CONTROL, QUIET), (FLOOD, CONTROL))
    }
    for name, ratio in ratios.items():
        print(f"p99 {name}: {ratio.value:.3f} (95 % interval: {ratio.low:.3f} to {ratio.high:.3f})")
    if options.json is not None:
        rounded = {name: {key: round(value, 3) for key, value in asdict(each).items()} for name, each in ratios.items()}
        content = {"machine": machine(), "conditions": rows, "ratios_of_p99": rounded}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
