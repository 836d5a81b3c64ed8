"""librdkafka, by its Python binding, works through Weir as it does directly."""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.broker.broker_features import CONSUMER_GROUPS
from tests.broker.conftest import Target
from tests.broker.records import ACKS, CODECS, LONG_RETENTION_MS, PARTITIONS, Record, assert_same, records
from tests.weir_process import wait_until

pytestmark = pytest.mark.broker

TIMEOUT = 60.0


def config(target: Target, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": target.bootstrap_servers} | {key.replace("_", "."): more[key] for key in more}


def result(futures: dict[Any, Future[Any]]) -> Any:
    """Return the result of an admin request about one resource."""
    (future,) = futures.values()
    return future.result(TIMEOUT)


def produce(producer: Producer, topic: str, sent: list[Record]) -> list[KafkaError]:
    """Send, wait for the last acknowledgement and return the errors."""
    errors: list[KafkaError] = []
    for record in sent:
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            timestamp=record.timestamp,
            headers=list(record.headers),
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
    assert producer.flush(TIMEOUT) == 0
    return errors


def as_record(message: Message) -> Record:
    return Record(message.partition(), message.key(), message.value(), message.timestamp()[1], tuple(message.headers() or ()))


def poll(consumer: Consumer, count: int, timeout: float = TIMEOUT) -> list[Record]:
    """Return `count` records, or fewer after `timeout` seconds."""
    arrived: list[Record] = []
    deadline = time.monotonic() + timeout
    while len(arrived) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(arrived), timeout=0.5):
            assert message.error() is None, message.error()
            arrived.append(as_record(message))
    return arrived


@contextmanager
def consumer_of(target: Target, group: str, **more: Any) -> Iterator[Consumer]:
    consumer = Consumer(config(target, group_id=group, auto_offset_reset="earliest", **more))
    try:
        yield consumer
    finally:
        consumer.close()


def read_all(target: Target, topic: str, count: int, **more: Any) -> list[Record]:
    """Return the topic's records: `count` of them, and any that follow at once."""
    with consumer_of(target, target.name("reader"), enable_auto_commit=False, **more) as consumer:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        return poll(consumer, count) + poll(consumer, 1, timeout=0.5)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ACKS)
def test_each_record_arrives_as_sent(target: Target, acks: str, codec: str) -> None:
    topic, sent = target.create_topic(), records()
    assert produce(Producer(config(target, acks=acks, compression_type=codec)), topic, sent) == []
    assert_same(read_all(target, topic, len(sent)), sent)


def test_idempotent_producer_delivers_each_record_once(target: Target) -> None:
    topic, sent = target.create_topic(), records(400)
    assert produce(Producer(config(target, enable_idempotence=True, linger_ms=1)), topic, sent) == []
    assert_same(read_all(target, topic, len(sent)), sent)


def test_metadata_names_only_gateway_addresses(target: Target) -> None:
    brokers = AdminClient(config(target)).list_topics(timeout=TIMEOUT).brokers
    assert len(brokers) == target.brokers
    assert len({broker.port for broker in brokers.values()}) == target.brokers
    if target.ports is not None:
        assert all(broker.port in target.ports for broker in brokers.values())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_shares_partitions_and_resumes(target: Target, protocol: str) -> None:
    if protocol == "consumer":
        CONSUMER_GROUPS.require()
    topic, group, sent = target.create_topic(), target.name("group"), records(60)
    with (
        consumer_of(target, group, group_protocol=protocol, enable_auto_commit=False) as first,
        consumer_of(target, group, group_protocol=protocol, enable_auto_commit=False) as second,
    ):
        members = (first, second)
        for member in members:
            member.subscribe([topic])
        deadline = time.monotonic() + TIMEOUT
        while [len(member.assignment()) for member in members] not in ([1, 2], [2, 1]):
            assert time.monotonic() < deadline, [member.assignment() for member in members]
            for member in members:
                assert member.poll(0.05) is None
        assert produce(Producer(config(target)), topic, sent) == []
        arrived: list[Record] = []
        while len(arrived) < len(sent) and time.monotonic() < deadline:
            arrived += poll(first, 100, timeout=0.2) + poll(second, 100, timeout=0.2)
        assert_same(arrived, sent)
        for member in members:
            member.commit(asynchronous=False)
    later = records(6)
    assert produce(Producer(config(target)), topic, later) == []
    with consumer_of(target, group, group_protocol=protocol) as resumed:
        resumed.subscribe([topic])
        assert_same(poll(resumed, len(later)), later)


def test_transaction_commits_consumer_offsets(target: Target) -> None:
    source, sink, group, sent = target.create_topic(), target.create_topic(), target.name("group"), records(30)
    assert produce(Producer(config(target)), source, sent) == []
    producer = Producer(config(target, transactional_id=target.name("transaction")))
    producer.init_transactions(TIMEOUT)
    with consumer_of(target, group, enable_auto_commit=False, isolation_level="read_committed") as consumer:
        consumer.subscribe([source])
        copied = poll(consumer, len(sent))

        producer.begin_transaction()
        assert produce(producer, sink, copied[:7]) == []
        producer.abort_transaction(TIMEOUT)

        producer.begin_transaction()
        assert produce(producer, sink, copied) == []
        offsets = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT)
        producer.commit_transaction(TIMEOUT)
    assert_same(read_all(target, sink, len(sent), isolation_level="read_committed"), sent)
    uncommitted = read_all(target, sink, len(sent) + 7, isolation_level="read_uncommitted")
    assert_same(uncommitted, copied[:7] + sent)
    with consumer_of(target, group) as resumed:
        committed = resumed.committed([TopicPartition(source, partition) for partition in range(PARTITIONS)])
    assert {(each.partition, each.offset) for each in committed} == {(each.partition, each.offset) for each in offsets}


def test_admin_requests_succeed(target: Target) -> None:
    admin, topic, group = AdminClient(config(target)), target.create_topic(), target.name("group")
    with pytest.raises(KafkaException, match="already exists"):
        result(admin.create_topics([NewTopic(topic, 1)]))
    result(admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)]))

    def replicas() -> list[int]:
        described = admin.list_topics(topic, timeout=TIMEOUT).topics[topic]
        return [len(partition.replicas) for partition in described.partitions.values()]

    wait_until(lambda: replicas() == [target.brokers] * (PARTITIONS + 1), "one more partition")

    change = ConfigEntry("retention.ms", LONG_RETENTION_MS, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    result(admin.incremental_alter_configs([resource]))

    def retention() -> str:
        configs = result(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
        return str(configs["retention.ms"].value)

    wait_until(lambda: retention() == LONG_RETENTION_MS, "retention.ms is described")

    assert produce(Producer(config(target)), topic, records(30)) == []
    result(admin.delete_records([TopicPartition(topic, 0, 4)]))
    with consumer_of(target, group) as consumer:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT) == (4, 10)
        consumer.commit(offsets=[TopicPartition(topic, 1, 3)], asynchronous=False)
    offsets = result(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
    assert [(each.topic, each.partition, each.offset) for each in offsets.topic_partitions] == [(topic, 1, 3)]
    changed = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 1, 5)])
    result(admin.alter_consumer_group_offsets([changed]))
    assert group in {listed.group_id for listed in admin.list_consumer_groups().result(TIMEOUT).valid}
    assert result(admin.describe_consumer_groups([group])).state.name == "EMPTY"
    result(admin.delete_consumer_groups([group]))

    nodes = admin.describe_cluster().result(TIMEOUT).nodes
    assert len(nodes) == target.brokers
    if target.ports is not None:
        assert all(node.port in target.ports for node in nodes)
    result(admin.delete_topics([topic]))
    wait_until(lambda: topic not in admin.list_topics(timeout=TIMEOUT).topics, "the topic is no longer listed")
