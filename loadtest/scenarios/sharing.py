"""Four gateways that share one quota in front of one broker: `python -m loadtest.scenarios.sharing`.

Unpaced producers (librdkafka) are spread over the gateways, and then all connect to one. One gateway is killed. The usage
topic becomes unreachable, with both settings of `sharing.when_unreachable`. The figures count the bytes in the topic's log.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from loadtest.bench.report import machine
from loadtest.scenarios.evenness.figures import per_second
from loadtest.scenarios.evenness.logs import LogCounter
from loadtest.testkit.fleet import AUTHORIZER, CLIENT_ID, Load, UsageTopicAccess, start_fleet
from loadtest.testkit.gateway_process import CompiledGateway
from loadtest.testkit.kafka import KafkaCluster
from loadtest.testkit.paths import RESULTS, RUN

RESULT_FILE = RESULTS / "sharing.json"
GATEWAYS = 4
CLIENTS = 16
QUOTA = 4_000_000
SAMPLES = 3
"""`quotas.window`: the burst is two seconds of the quota."""

_TOPIC = "shared"
_TOLERANCE = 0.03
_WIDTH = 5


@dataclass(frozen=True, slots=True)
class Phase:
    """The bytes that the log received in each second, as parts of the quota.

    `mean` leaves out the first `settling` seconds. After `settled` seconds, the mean of five seconds stays within 3 % of
    `expected`. `trouble` counts the producers' disconnects and failed records.
    """

    name: str
    expected: float
    settling: int
    mean: float
    lowest: float
    highest: float
    empty_seconds: int
    settled: int | None
    trouble: int
    seconds: list[float]


def phase(name: str, rates: list[float], trouble: int, *, settling: int, expected: float) -> Phase:
    """The figures of a phase."""
    after = rates[settling:]
    means = [sum(rates[first : first + _WIDTH]) / _WIDTH for first in range(len(rates) - _WIDTH + 1)]
    off = [first for first, mean in enumerate(means) if abs(mean / expected - 1.0) > _TOLERANCE]
    settled = off[-1] + 1 if off else 0
    return Phase(
        name=name,
        expected=expected,
        settling=settling,
        mean=round(sum(after) / len(after), 4),
        lowest=round(min(after), 3),
        highest=round(max(after), 3),
        empty_seconds=sum(rate < 0.02 for rate in rates),
        settled=settled if settled < len(means) else None,
        trouble=trouble,
        seconds=[round(rate, 3) for rate in rates],
    )


class Experiment:
    """The cluster, the gateways and the load. `stack` stops all of them."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        cluster = stack.enter_context(KafkaCluster(directory / "kafka", 1, AUTHORIZER))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic(_TOPIC, 1, 1)])[_TOPIC].result(30)
        quotas = {
            "entities": [{"client-id": CLIENT_ID, "producer_byte_rate": QUOTA}],
            "window": {"samples": SAMPLES, "seconds": 1},
        }
        self.gateways = start_fleet(stack, CompiledGateway, directory, cluster.bootstrap_servers, GATEWAYS, {"quotas": quotas})
        self.access = UsageTopicAccess(cluster.bootstrap_servers)
        self.load = Load(self.gateways, _TOPIC)
        stack.callback(self.load.close)
        self._log = cluster.brokers[0].directory / "data"
        self.phases: list[Phase] = []

    def spread(self, gateways: int = GATEWAYS) -> None:
        """Put the same number of clients on each of the first gateways."""
        self.load.put(
            [CLIENTS // gateways + (number < CLIENTS % gateways) for number in range(gateways)] + [0] * (GATEWAYS - gateways)
        )

    def gather(self) -> None:
        """Put all clients on the first gateway."""
        self.load.put([CLIENTS] + [0] * (GATEWAYS - 1))

    def watch(self, name: str, begin: Callable[[], None], seconds: int, settling: int = 0, expected: float = 1.0) -> None:
        """Start an action and measure for some seconds."""
        counter = LogCounter(self._log, [_TOPIC])
        counter.start()
        trouble = self.load.trouble()
        begin()
        time.sleep(seconds + 0.5)
        counter.stop()
        rates = [rate / QUOTA for rate in per_second(counter.series(_TOPIC), seconds)]
        self.phases.append(phase(name, rates, self.load.trouble() - trouble, settling=settling, expected=expected))
        print(self.phases[-1], flush=True)


def run(scale: float) -> list[Phase]:
    """Run all phases; `scale` shortens them."""

    def seconds(full: int) -> int:
        return max(12, round(full * scale))

    RUN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sharing-", dir=RUN) as name, ExitStack() as stack:
        on = Experiment(stack, Path(name))
        on.watch("four clients at each of four gateways, from their start", on.spread, seconds(40), settling=10)
        on.watch("all at one", on.gather, seconds(30), settling=5)
        on.watch("spread again", on.spread, seconds(30), settling=5)
        on.watch("topic unreachable, local", on.access.deny, seconds(30), settling=8, expected=GATEWAYS)
        on.watch("back", on.access.allow, seconds(30), settling=10)
        for gateway in on.gateways:
            gateway.write_config({**gateway.config, "sharing": {"when_unreachable": "fair_share"}})
        on.watch("fair_share, set at run time", lambda: None, seconds(12), settling=5)
        on.watch("topic unreachable, fair_share", on.access.deny, seconds(30), settling=8)
        on.watch("all at one, topic still unreachable", on.gather, seconds(20), settling=5, expected=1 / GATEWAYS)
        on.watch("topic reachable again, all at one", on.access.allow, seconds(30), settling=10)
        on.watch("spread again", on.spread, seconds(15), settling=5)

        def kill() -> None:
            on.load.put([CLIENTS // GATEWAYS] * (GATEWAYS - 1) + [0])
            on.gateways[-1].process.kill()

        on.watch("one gateway killed, with its clients", kill, seconds(30), settling=10)
        return on.phases


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.sharing", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all durations; below 1, no results are written")
    scale = parser.parse_args().scale
    phases = run(scale)
    if scale >= 1.0:
        RESULT_FILE.write_text(
            json.dumps({"machine": machine(), "phases": [asdict(found) for found in phases]}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
