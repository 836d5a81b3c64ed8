"""`python -m loadtest.scenarios.scope_broker`: Weir's quotas with `scope: broker` beside the brokers' own, with one algorithm.

Three brokers have a quota for one client-id, Weir has the same figure for another one. Each client has a producer that never
waits at each broker, directly or through Weir. The rates are those of the brokers' logs.

Kafka's window makes such a producer stop and go, with a period of the window. With the default of eleven seconds, the brokers'
own rates differ by 4 % within two minutes. So brokers and Weir have a window of two seconds.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from gateway.migration.access import addresses, by_properties
from gateway.migration.broker_admin import BrokerAdmin
from gateway.migration.broker_quotas import entity_of
from loadtest.bench.report import machine
from loadtest.scenarios.evenness.logs import Sampler, Series, log_bytes
from loadtest.testkit.fleet import UnpacedProducer
from loadtest.testkit.gateway_process import CompiledGateway, GatewayProcess
from loadtest.testkit.kafka import KafkaCluster
from loadtest.testkit.paths import RESULTS, RUN

RESULT_FILE: Final = RESULTS / "scope-broker.json"
BROKERS: Final = 3
RATE: Final = 1_000_000
"""The quota of each client at each broker, in bytes per second."""

KEY: Final = "producer_byte_rate"
OF_BROKERS, OF_WEIR = "limited-by-brokers", "limited-by-weir"
WINDOW: Final = {"samples": 2, "seconds": 1}
SETTLING_SECONDS: Final = 10.0
TOLERANCE: Final = 0.03


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rates at one broker, as parts of the quota."""

    broker: int
    by_broker: float
    by_weir: float

    @property
    def difference(self) -> float:
        return self.by_weir / self.by_broker - 1.0

    def __str__(self) -> str:
        return (
            f"broker {self.broker}: {self.by_broker:.3f} of the quota by its own, {self.by_weir:.3f} by Weir"
            f" ({self.difference:+.1%})"
        )


class LogSizes(Sampler):
    """Samples the only partition of each topic, in the log directory of its broker."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        super().__init__()
        self.series: dict[str, Series] = {topic: [] for topic in folders}
        self._folders = folders

    def sample(self, now: float) -> None:
        for topic, folder in self._folders.items():
            self.series[topic].append((now, log_bytes(folder)))


def mean_rate(series: Series) -> float:
    """Bytes per second after the first `SETTLING_SECONDS`, in which the producers use up their burst."""
    begin, *_, end = [sample for sample in series if sample[0] >= series[0][0] + SETTLING_SECONDS]
    return (end[1] - begin[1]) / (end[0] - begin[0])


async def set_quota(servers: str) -> None:
    quotas = {entity_of({"client-id": OF_BROKERS}): {KEY: float(RATE)}}
    async with BrokerAdmin(by_properties(addresses(servers), None)) as admin:
        await admin.alter(quotas)
        await admin.wait_until_applied(await admin.cluster(), quotas)


def create_topics(cluster: KafkaCluster) -> dict[tuple[str, int], str]:
    """A topic for each client and broker, with its only partition at that broker."""
    topics = {(client_id, broker): f"{client_id}-{broker}" for client_id in (OF_BROKERS, OF_WEIR) for broker in range(BROKERS)}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    new = [
        NewTopic(topic, 1, replica_assignment=[[broker]], config={"min.insync.replicas": "1"})
        for (_, broker), topic in topics.items()
    ]
    for created in admin.create_topics(new).values():
        created.result(60)
    return topics


def compare(cluster: KafkaCluster, directory: Path, gateway_class: type[GatewayProcess], seconds: float) -> list[Comparison]:
    asyncio.run(set_quota(cluster.bootstrap_servers))
    topics = create_topics(cluster)
    entities = [{"client-id": OF_WEIR, KEY: RATE}]
    quotas: dict[str, Any] = {"scope": "broker", "algorithm": "window", "window": WINDOW, "entities": entities}
    sizes = LogSizes(
        {topic: cluster.brokers[broker].directory / "data" / f"{topic}-0" for (_, broker), topic in topics.items()}
    )
    with ExitStack() as stack:
        gateway = stack.enter_context(gateway_class(directory, cluster.bootstrap_servers, {"quotas": quotas}))
        servers = {OF_BROKERS: cluster.bootstrap_servers, OF_WEIR: gateway.bootstrap_servers}
        sizes.start()
        for (client_id, _), topic in topics.items():
            stack.callback(UnpacedProducer(servers[client_id], topic, client_id).close)
        time.sleep(seconds)
        sizes.stop()
        rows = [row for row in gateway.usage() if (row["kind"], row["client_id"]) == ("produce", OF_WEIR)]
    print("buckets in Weir:", ", ".join(f"broker {row['broker']} {row['rate'] / RATE:.2f}" for row in rows))
    found = []
    for broker in range(BROKERS):
        own, weirs = (mean_rate(sizes.series[topics[client_id, broker]]) / RATE for client_id in (OF_BROKERS, OF_WEIR))
        found.append(Comparison(broker, round(own, 4), round(weirs, 4)))
    return found


def report(found: Sequence[Comparison]) -> str:
    return "\n".join(map(str, found))


def main() -> int:
    """Run the scenario and print the rates; returns 1 if one of them is not within `TOLERANCE`."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.scope_broker", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the measurement; below 120, no results are written")
    parser.add_argument("--interpreted", action="store_true", help="run this checkout, not the compiled build")
    options = parser.parse_args()
    RUN.mkdir(exist_ok=True)
    kafkas_window = {"quota.window.num": str(WINDOW["samples"]), "quota.window.size.seconds": str(WINDOW["seconds"])}
    with (
        tempfile.TemporaryDirectory(prefix="scope-", dir=RUN) as name,
        KafkaCluster(Path(name) / "kafka", BROKERS, kafkas_window) as cluster,
    ):
        gateway_class = GatewayProcess if options.interpreted else CompiledGateway
        found = compare(cluster, Path(name) / "weir", gateway_class, options.seconds)
    print(report(found))
    if options.seconds >= 120.0:
        rows = [{**asdict(each), "difference": round(each.difference, 4)} for each in found]
        RESULT_FILE.write_text(json.dumps({"machine": machine(), "brokers": rows}, indent=1) + "\n")
    return int(any(abs(each.difference) > TOLERANCE for each in found))


if __name__ == "__main__":
    sys.exit(main())
