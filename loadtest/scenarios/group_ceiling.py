"""One ceiling for many client-ids at two gateways: `python -m loadtest.scenarios.group_ceiling`.

Unpaced producers (librdkafka) with the client-ids job-0 to job-31 belong to a group, half of them at each gateway. The
client-id jobless does not match the group's pattern, and has a quota of its own. The figures count the bytes in the topics'
logs.
"""

import argparse
import json
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from loadtest.bench.report import machine
from loadtest.scenarios.evenness.figures import per_second
from loadtest.scenarios.evenness.logs import LogCounter
from loadtest.scenarios.sharing import Phase, phase
from loadtest.testkit.fleet import UnpacedProducer, start_fleet
from loadtest.testkit.gateway_process import CompiledGateway, GatewayProcess
from loadtest.testkit.kafka import KafkaCluster
from loadtest.testkit.paths import RESULTS, RUN

RESULT_FILE = RESULTS / "group-ceiling.json"
MEMBERS = 32
GATEWAYS = 2
CEILING = 4_000_000
OF_STRANGER = 1_000_000
SETTLING = 10

_QUOTAS = {
    "entities": [{"client-id": "jobless", "producer_byte_rate": OF_STRANGER}],
    "groups": [{"name": "jobs", "match": [{"client-id": "job-*"}], "producer_byte_rate": CEILING}],
    "window": {"samples": 3, "seconds": 1},
}


def run(kind: type[GatewayProcess], seconds: int, members: int = MEMBERS) -> list[Phase]:
    """The rates of all members together, and of the stranger, each as a part of its limit."""
    RUN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="groups-", dir=RUN) as name, ExitStack() as stack:
        directory = Path(name)
        cluster = stack.enter_context(KafkaCluster(directory / "kafka", 1))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        for created in admin.create_topics([NewTopic(topic, 1, 1) for topic in ("jobs", "others")]).values():
            created.result(30)
        gateways = start_fleet(stack, kind, directory, cluster.bootstrap_servers, GATEWAYS, {"quotas": _QUOTAS})
        counter = LogCounter(cluster.brokers[0].directory / "data", ["jobs", "others"])
        counter.start()
        clients = [("jobs", f"job-{number}") for number in range(members)] + [("others", "jobless")]
        producers = []
        for number, (topic, client_id) in enumerate(clients):
            producers.append(UnpacedProducer(gateways[number % GATEWAYS].bootstrap_servers, topic, client_id))
            stack.callback(producers[-1].close)
        time.sleep(seconds + 0.5)
        counter.stop()
        trouble = sum(producer.disconnects + producer.failed.total() for producer in producers)
        return [
            phase(
                text,
                [rate / limit for rate in per_second(counter.series(topic), seconds)],
                trouble,
                settling=SETTLING,
                expected=1.0,
            )
            for text, topic, limit in (
                (f"job-0 to job-{members - 1}, together", "jobs", CEILING),
                ("jobless", "others", OF_STRANGER),
            )
        ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.group_ceiling", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="of the measurement; below 60, no results are written")
    parser.add_argument("--interpreted", action="store_true", help="run this checkout, not the compiled build")
    options = parser.parse_args()
    phases = run(GatewayProcess if options.interpreted else CompiledGateway, options.seconds)
    for found in phases:
        print(found)
    if options.seconds >= 60:
        RESULT_FILE.write_text(
            json.dumps({"machine": machine(), "phases": [asdict(found) for found in phases]}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
