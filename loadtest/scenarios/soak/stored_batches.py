"""The records in the brokers' logs, and the sizes of the log files."""

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from loadtest.scenarios.soak.raw_requests import number_of
from loadtest.scenarios.soak.setting import PARTITIONS
from loadtest.testkit.kafka import KafkaCluster

_PATIENCE_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.5
_AT_ONCE: Final = 5000


def stored_numbers(bootstrap_servers: str, topics: Iterable[str]) -> dict[str, Counter[int]]:
    """By topic: how often each number is in the log. Raises RuntimeError if the brokers do not answer in time."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": "soak-check", "enable.partition.eof": True}
    found = {}
    for topic in topics:
        consumer = Consumer({**settings, "enable.auto.commit": False, "fetch.wait.max.ms": 10})
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        numbers: Counter[int] = Counter()
        ends, deadline = 0, time.monotonic() + _PATIENCE_SECONDS
        while ends < PARTITIONS:
            messages = consumer.consume(_AT_ONCE, _LOOK_SECONDS)
            if messages:
                deadline = time.monotonic() + _PATIENCE_SECONDS
            elif time.monotonic() > deadline:
                raise RuntimeError(f"topic {topic} can't be read to its end")
            for message in messages:
                if message.error():
                    ends += 1
                else:
                    numbers[number_of(message.key() or b"")] += 1
        consumer.close()
        found[topic] = numbers
    return found


def log_bytes(cluster: KafkaCluster, topics: Iterable[str]) -> dict[str, list[int]]:
    """By topic: the size of its log files on each broker, all partitions together."""
    return {topic: [_size(node.directory / "data", topic) for node in cluster.brokers] for topic in topics}


def _size(data: Path, topic: str) -> int:
    return sum(file.stat().st_size for partition in range(PARTITIONS) for file in (data / f"{topic}-{partition}").glob("*.log"))
