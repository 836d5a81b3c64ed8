"""kafka-python works through Weir as it does directly."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import CoordinatorNotAvailableError, NoError, TopicAlreadyExistsError
from kafka.structs import OffsetAndMetadata

from tests.broker.conftest import Target
from tests.broker.records import ACKS, CODECS, LONG_RETENTION_MS, PARTITIONS, Record, assert_same, records
from tests.weir_process import wait_until

# kafka-python's clients leave the socket pair that wakes their thread to the garbage collector.
pytestmark = [
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("collected_garbage"),
]

TIMEOUT = 60.0
HEARTBEAT_MS = 500


def producer_of(target: Target, **config: Any) -> "closing[KafkaProducer]":
    return closing(KafkaProducer(bootstrap_servers=target.bootstrap_servers, **config))


def consumer_of(target: Target, *topics: str, **config: Any) -> "closing[KafkaConsumer]":
    config = {"auto_offset_reset": "earliest", "metadata_max_age_ms": 1_000} | config
    return closing(KafkaConsumer(*topics, bootstrap_servers=target.bootstrap_servers, **config))


def join(consumer: KafkaConsumer, topic: str) -> None:
    """Subscribe once the topic's partitions are known. A group leader that does not know them assigns none, permanently."""
    wait_until(lambda: consumer.partitions_for_topic(topic), f"partitions of {topic} are known", TIMEOUT)
    consumer.subscribe([topic])


def admin_of(target: Target) -> "closing[KafkaAdminClient]":
    return closing(KafkaAdminClient(bootstrap_servers=target.bootstrap_servers))


def produce(producer: KafkaProducer, topic: str, sent: list[Record]) -> None:
    """Send, and wait for every acknowledgement, or with acks=0 until all bytes are written."""
    waiting = [record.send(producer.send, topic) for record in sent]
    producer.flush(TIMEOUT)
    for future in waiting:
        future.get(TIMEOUT)


def record_of(message: Any) -> Record:
    return Record(message.partition, message.key, message.value, message.timestamp, tuple(message.headers))


def poll(consumer: KafkaConsumer, count: int, timeout: float = TIMEOUT) -> list[Record]:
    """Return `count` records, or fewer after `timeout` seconds."""
    arrived: list[Record] = []
    deadline = time.monotonic() + timeout
    while len(arrived) < count and time.monotonic() < deadline:
        for batch in consumer.poll(timeout_ms=200, max_records=count - len(arrived)).values():
            arrived += map(record_of, batch)
    return arrived


def read_all(target: Target, topic: str, count: int, **config: Any) -> list[Record]:
    """Return the topic's records: `count` of them, and any that follow at once."""
    with consumer_of(target, **config) as consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
        return poll(consumer, count) + poll(consumer, 1, timeout=0.5)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ACKS)
def test_each_record_arrives_as_sent(target: Target, acks: str, codec: str) -> None:
    topic, sent = target.create_topic(), records()
    config: dict[str, Any] = {
        "acks": "all" if acks == "all" else int(acks),
        "compression_type": None if codec == "none" else codec,
        "enable_idempotence": False,
    }
    with producer_of(target, **config) as producer:
        produce(producer, topic, sent)
    assert_same(read_all(target, topic, len(sent)), sent)


def test_idempotent_producer_delivers_each_record_once(target: Target) -> None:
    topic, sent = target.create_topic(), records(400)
    with producer_of(target, enable_idempotence=True) as producer:
        produce(producer, topic, sent)
    assert_same(read_all(target, topic, len(sent)), sent)


class Member:
    """A context manager: a member of a group that polls in a thread of its own, and commits at the end.

    kafka-python drops the result of a join that ends between two polls, and joins again. With several short polls for each
    join, two members could go on like this for ever, without Weir as well. So a poll lasts longer than a join.
    """

    def __init__(self, consumer: KafkaConsumer) -> None:
        self.consumer = consumer
        self.arrived: list[Record] = []
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> "Member":
        self._polling = self._pool.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._pool.shutdown()
        self._polling.result()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for batch in self.consumer.poll(timeout_ms=5 * HEARTBEAT_MS).values():
                self.arrived += map(record_of, batch)
        self.consumer.commit()


def test_group_shares_partitions_and_resumes(target: Target) -> None:
    topic, group, sent = target.create_topic(), target.name("group"), records(60)
    config = {"group_id": group, "heartbeat_interval_ms": HEARTBEAT_MS}
    with consumer_of(target, **config) as one, consumer_of(target, **config) as other:
        join(one, topic)
        join(other, topic)
        with Member(one) as first, Member(other) as second:
            wait_until(
                lambda: sorted(len(each.assignment()) for each in (one, other)) == [1, 2], "both have partitions", TIMEOUT
            )
            with producer_of(target) as producer:
                produce(producer, topic, sent)
            wait_until(lambda: len(first.arrived + second.arrived) >= len(sent), "all records arrive", TIMEOUT)
        assert_same(first.arrived + second.arrived, sent)
    later = records(6)
    with producer_of(target) as producer:
        produce(producer, topic, later)
    with consumer_of(target, group_id=group) as resumed:
        join(resumed, topic)
        assert_same(poll(resumed, len(later)), later)


def test_transaction_commits_consumer_offsets(target: Target) -> None:
    source, sink, group, sent = target.create_topic(), target.create_topic(), target.name("group"), records(30)
    with producer_of(target) as producer:
        produce(producer, source, sent)
    with (
        producer_of(target, transactional_id=target.name("transaction")) as producer,
        consumer_of(target, group_id=group, enable_auto_commit=False) as consumer,
    ):
        producer.init_transactions()
        join(consumer, source)
        copied = poll(consumer, len(sent))
        producer.begin_transaction()
        produce(producer, sink, copied[:7])
        producer.abort_transaction()

        producer.begin_transaction()
        produce(producer, sink, copied)
        offsets = {partition: OffsetAndMetadata(consumer.position(partition), "", -1) for partition in consumer.assignment()}
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        producer.commit_transaction()
        for partition, value in offsets.items():
            wait_until(lambda: consumer.committed(partition) == value.offset, f"commit of {partition}", TIMEOUT)  # noqa: B023
    assert_same(read_all(target, sink, len(sent), isolation_level="read_committed"), sent)
    assert_same(read_all(target, sink, len(sent) + 7), copied[:7] + sent)


def test_admin_requests_succeed(target: Target) -> None:
    topic, group = target.name("kafka-python"), target.name("group")
    wanted = {topic: {"num_partitions": PARTITIONS, "replication_factor": target.brokers}}
    with admin_of(target) as admin, producer_of(target) as producer:
        admin.create_topics(wanted, wait_for_metadata=True)
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics(wanted)
        produce(producer, topic, records(30))
        admin.create_partitions({topic: PARTITIONS + 1})

        def replicas() -> list[int]:
            (described,) = admin.describe_topics([topic])
            return [len(partition["replica_nodes"]) for partition in described["partitions"]]

        wait_until(lambda: replicas() == [target.brokers] * (PARTITIONS + 1), "one more partition")

        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": LONG_RETENTION_MS})])

        def retention() -> str | None:
            # Only configs that differ from their defaults are described. The default is the broker's log.retention.ms.
            configs = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            return configs["topic"][topic].get("retention.ms", {}).get("value")

        wait_until(lambda: retention() == LONG_RETENTION_MS, "retention.ms is described")

        first = TopicPartition(topic, 0)
        assert admin.delete_records({first: 4})[first]["low_watermark"] == 4
        with consumer_of(target) as consumer:
            assert consumer.beginning_offsets([first]) == {first: 4}
        second = TopicPartition(topic, 1)

        def altered() -> bool:
            try:
                return bool(admin.alter_group_offsets(group, {second: OffsetAndMetadata(3, "", -1)}) == {second: NoError})
            except CoordinatorNotAvailableError:  # the first group of a cluster: brokers still create the topic of offsets
                return False

        wait_until(altered, "offsets of the group are altered")
        offsets = admin.list_group_offsets([group])[group]
        assert {partition: value.offset for partition, value in offsets.items()} == {second: 3}
        assert group in {listed["group_id"] for listed in admin.list_groups()}
        admin.delete_groups([group])
        assert group not in {listed["group_id"] for listed in admin.list_groups()}

        ports = [broker["port"] for broker in admin.describe_cluster()["brokers"]]
        assert len(set(ports)) == target.brokers
        assert target.ports is None or all(port in target.ports for port in ports)
        admin.delete_topics([topic])
        wait_until(lambda: topic not in admin.list_topics(), "the topic is no longer listed")
