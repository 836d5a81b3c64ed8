"""Checks one quota whose clients are spread over one worker or two, by the bytes in a real broker's log."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from loadtest.scenarios.evenness.figures import per_second
from loadtest.scenarios.evenness.logs import LogCounter
from loadtest.scenarios.sharing import Phase, phase
from loadtest.testkit.fleet import CLIENT_ID, Load
from loadtest.testkit.gateway_process import CompiledGateway, GatewayProcess
from loadtest.testkit.kafka import KafkaCluster
from loadtest.testkit.paths import RUN

CLIENTS = 16
QUOTA = 4_000_000
SETTLING_SECONDS = 15
"""The burst is two seconds of the quota. On a busy machine, producers may take a while to use it."""

_CONFIG: dict[str, Any] = {
    "quotas": {
        "entities": [{"client-id": CLIENT_ID, "producer_byte_rate": QUOTA}],
        "window": {"samples": 3, "seconds": 1},
    }
}


def accuracy(seconds: int) -> dict[int, Phase]:
    """Run unpaced producers from their start for some seconds, for each number of workers."""
    found = {}
    RUN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="workers-", dir=RUN) as name, ExitStack() as stack:
        cluster = stack.enter_context(KafkaCluster(Path(name, "kafka"), 1))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        for workers in (1, 2):
            topic = f"workers-{workers}"
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
            config = {**_CONFIG, "workers": workers}
            with CompiledGateway(Path(name, topic), cluster.bootstrap_servers, config) as gateway:
                found[workers] = _watch(cluster, gateway, topic, seconds)
    return found


def _watch(cluster: KafkaCluster, gateway: GatewayProcess, topic: str, seconds: int) -> Phase:
    load = Load([gateway], topic)
    counter = LogCounter(cluster.brokers[0].directory / "data", [topic])
    try:
        counter.start()
        load.put([CLIENTS])
        time.sleep(seconds + 0.5)
        counter.stop()
        rates = [rate / QUOTA for rate in per_second(counter.series(topic), seconds)]
        return phase(topic, rates, load.trouble(), settling=SETTLING_SECONDS, expected=1.0)
    finally:
        load.close()
