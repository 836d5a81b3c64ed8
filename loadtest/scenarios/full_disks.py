"""`python -m loadtest.scenarios.full_disks`: producers write several times the size of three brokers' small disks.

Each broker has a topic and a producer that never waits; only broker 0's producer writes large records. While Weir pauses the
producers, the scenario deletes broker 0's records through the gateway after some time, as an operator would. It reports the
fullest disk and the throughput of each producer in each state. It needs root for the small file systems.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from pathlib import Path

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from loadtest.testkit.gateway_process import CompiledGateway, GatewayError, GatewayProcess
from loadtest.testkit.kafka import CannotMountError, JarsMissingError, NodeError, cluster_on_small_volumes, used_bytes
from loadtest.testkit.paths import RUN

_MIB = 1024 * 1024
_SAMPLE_SECONDS = 0.1
_PAUSED_SECONDS = 3.0
_TIMEOUT = 60.0
STATES = ("OPEN", "THROTTLE", "PAUSE")


class Greedy(threading.Thread):
    """Produces to a topic as fast as possible until stopped."""

    def __init__(self, bootstrap_servers: str, topic: str, size: int) -> None:
        super().__init__()
        self.topic = topic
        self.acknowledged = 0
        self.failed = 0
        self._size = size
        self._stopped = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "queue.buffering.max.messages": 32,
                "linger.ms": 5,
            }
        )

    def run(self) -> None:
        record = bytes(self._size)
        while not self._stopped.is_set():
            try:
                self._producer.produce(self.topic, record, callback=self._done)
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)
        self.failed += self._producer.flush(_TIMEOUT)

    def _done(self, error: object, _: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed += 1

    def stop(self) -> None:
        """Stop and wait until all records are acknowledged."""
        self._stopped.set()
        self.join()


def state_of(gateway: GatewayProcess) -> str:
    """The state that the gateway reports."""
    with urllib.request.urlopen(f"{gateway.admin}/api/volumes", timeout=10) as answer:
        return str(json.load(answer)["state"])


def measure(seconds: float, volume_mib: int) -> dict[str, object]:
    """Run the scenario for about `seconds`; returns the figures."""
    RUN.mkdir(exist_ok=True)
    limits = {"soft": {"type": "MinFreePercentage", "level": 50}, "hard": {"type": "MinFreePercentage", "level": 30}}
    volumes = {**limits, "publish_interval_ms": 500, "freshness_seconds": 5, "max_delay_ms": 1000}
    with (
        tempfile.TemporaryDirectory(dir=RUN) as folder,
        cluster_on_small_volumes(Path(folder), 3, volume_mib * _MIB) as cluster,
    ):
        disks = [node.directory / "data" for node in cluster.brokers]
        config = {"quotas": {"volumes": volumes}}
        gateway = CompiledGateway(Path(folder) / "weir", cluster.bootstrap_servers, config)
        with gateway:
            admin = AdminClient({"bootstrap.servers": gateway.bootstrap_servers})
            topics = [
                NewTopic(f"on-{broker}", num_partitions=1, replica_assignment=[[broker]], config={"min.insync.replicas": "1"})
                for broker in range(3)
            ]
            for created in admin.create_topics(topics).values():
                created.result(_TIMEOUT)
            producers = [
                Greedy(gateway.bootstrap_servers, topic.topic, 16_384 if n == 0 else 500) for n, topic in enumerate(topics)
            ]
            for producer in producers:
                producer.start()
            spent: dict[str, float] = defaultdict(float)
            done: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
            fullest, pauses, paused_since = 0.0, 0, 0.0
            begun = last = time.monotonic()
            before, counts = state_of(gateway), [0, 0, 0]
            while last - begun < seconds or before == "PAUSE":
                time.sleep(_SAMPLE_SECONDS)
                now, state = time.monotonic(), state_of(gateway)
                spent[before] += now - last
                for number, producer in enumerate(producers):
                    done[before][number] += producer.acknowledged - counts[number]
                    counts[number] = producer.acknowledged
                fullest = max(fullest, *(used_bytes(disk) / (volume_mib * _MIB) for disk in disks))
                if state == "PAUSE" and before != "PAUSE":
                    pauses, paused_since = pauses + 1, now
                if state == "PAUSE" and paused_since and now - paused_since > _PAUSED_SECONDS:
                    everything = [TopicPartition(topics[0].topic, 0, -1)]
                    for deleted in admin.delete_records(everything).values():
                        deleted.result(_TIMEOUT)
                    paused_since = 0.0
                before, last = state, now
            for producer in producers:
                producer.stop()
    return {
        "volume_mib": volume_mib,
        "seconds": round(last - begun, 1),
        "pauses": pauses,
        "fullest_ratio": round(fullest, 3),
        "failed_records": sum(producer.failed for producer in producers),
        "seconds_by_state": {state: round(spent[state], 1) for state in STATES},
        "records_per_second_by_state": {
            state: [round(count / spent[state], 1) if spent[state] else 0.0 for count in done[state]] for state in STATES
        },
    }


def main() -> int:
    """Run the scenario and print JSON; returns 1 if a disk was full or a record was lost."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.full_disks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=90.0, help="duration (default: 90)")
    parser.add_argument("--volume-mib", type=int, default=128, help="size of each broker's disk (default: 128)")
    options = parser.parse_args()
    try:
        seen = measure(options.seconds, options.volume_mib)
    except (CannotMountError, JarsMissingError, NodeError, GatewayError) as error:
        print(f"full_disks: {error}", file=sys.stderr)
        return 1
    print(json.dumps(seen, indent=2))
    return int(bool(seen["failed_records"]) or float(str(seen["fullest_ratio"])) >= 1.0)


if __name__ == "__main__":
    sys.exit(main())
