"""A cluster on small file systems, and usage messages, for tests of volume quotas."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from loadtest.testkit.kafka import CannotMountError, KafkaCluster, cluster_on_small_volumes
from tests.weir_process import Weir

MIB = 1024 * 1024
VOLUME_BYTES = 96 * MIB
TIMEOUT = 90.0


@contextmanager
def small_cluster(directory: Path, brokers: int) -> Iterator[KafkaCluster]:
    """A cluster whose brokers have a small file system each. The test is skipped if none can be mounted."""
    try:
        with cluster_on_small_volumes(directory, brokers, VOLUME_BYTES) as cluster:
            yield cluster
    except CannotMountError as error:
        pytest.skip(str(error))


def usage(consumed: int, *, age: float = 0.0, **changes: Any) -> bytes:
    """Return a usage message of a volume with 1000 bytes, a soft limit at 500 and a hard limit at 900."""
    when = datetime.now(UTC) - timedelta(seconds=age)
    message = {
        "Version": 1,
        "SnapshotAt": when.isoformat(),
        "Hard limit": {"type": "ConsumedSpace", "level": 900},
        "Soft limit": {"type": "ConsumedSpace", "level": 500},
        "Volumes": [{"VolumeName": "/data", "Capacity": 1000, "Consumed": consumed}],
    }
    return json.dumps(message | changes).encode()


class UsageTopic:
    """The usage topic, with a publisher and a reader directly at the brokers."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.topic = topic
        self._servers = bootstrap_servers
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0, "message.timeout.ms": 60_000})

    def publish(self, value: bytes | None, *, brokers: tuple[int, ...] = (0,), key: bytes | None = None) -> None:
        """Publish one value for each broker, or under another key, and wait until it is readable."""
        failed: list[object] = []
        for name in [key] if key is not None else [str(broker).encode() for broker in brokers]:
            self._producer.produce(
                self.topic, value, key=name, callback=lambda error, _: failed.append(error) if error else None
            )
        assert self._producer.flush(TIMEOUT) == 0
        assert failed == []

    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        """Return key and value of all records in the topic."""
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": "usage", "enable.auto.commit": False})
        partition = TopicPartition(self.topic, 0, 0)
        try:
            _, end = consumer.get_watermark_offsets(partition, timeout=TIMEOUT)
            consumer.assign([partition])
            found = []
            while consumer.position([partition])[0].offset < end:
                message = consumer.poll(TIMEOUT)
                if message is None:
                    break
                assert message.error() is None
                found.append((message.key(), message.value()))
                if message.offset() >= end - 1:
                    break
            return found
        finally:
            consumer.close()


def state(gateway: Weir) -> str:
    """Return the state that the gateway shows."""
    return str(gateway.api("volumes")["state"])
