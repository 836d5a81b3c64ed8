"""aiokafka works through Weir as it does directly."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.broker.conftest import Target
from tests.broker.records import ACKS, CODECS, LONG_RETENTION_MS, PARTITIONS, Record, assert_same, records

pytestmark = pytest.mark.broker

TIMEOUT = 60.0


@asynccontextmanager
async def producer_of(target: Target, **config: Any) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=target.bootstrap_servers, **config)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def consumer_of(target: Target, *topics: str, **config: Any) -> AsyncIterator[AIOKafkaConsumer]:
    config = {"auto_offset_reset": "earliest", "metadata_max_age_ms": 1_000} | config
    consumer = AIOKafkaConsumer(*topics, bootstrap_servers=target.bootstrap_servers, **config)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


@asynccontextmanager
async def admin_of(target: Target) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=target.bootstrap_servers)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def produce(producer: AIOKafkaProducer, topic: str, sent: list[Record]) -> None:
    """Send, and wait for every acknowledgement, or with acks=0 until all bytes are written."""
    waiting = [await record.send(producer.send, topic) for record in sent]
    await asyncio.wait_for(asyncio.gather(*waiting), TIMEOUT)


def as_record(message: ConsumerRecord) -> Record:
    headers = tuple((key, bytes(value)) for key, value in message.headers)
    return Record(message.partition, message.key, message.value, message.timestamp, headers)


async def poll(consumer: AIOKafkaConsumer, count: int, within: float = TIMEOUT) -> list[Record]:
    """Return `count` records, or fewer after `within` seconds."""
    arrived: list[Record] = []
    try:
        async with asyncio.timeout(within):
            while len(arrived) < count:
                batches = await consumer.getmany(timeout_ms=200, max_records=count - len(arrived))
                arrived += [as_record(message) for batch in batches.values() for message in batch]
    except TimeoutError:
        pass
    return arrived


async def until_equal(found: Callable[[], Awaitable[Any]], expected: object) -> None:
    """Repeat the request, because brokers learn of changes one after the other. Fails after `TIMEOUT` seconds."""
    deadline = asyncio.get_running_loop().time() + TIMEOUT
    while (value := await found()) != expected:
        assert asyncio.get_running_loop().time() < deadline, f"{value} is not {expected}"
        await asyncio.sleep(0.05)


async def read_all(target: Target, topic: str, count: int, **config: Any) -> list[Record]:
    """Return the topic's records: `count` of them, and any that follow at once."""
    async with consumer_of(target, **config) as consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
        return await poll(consumer, count) + await poll(consumer, 1, within=0.5)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ACKS)
async def test_each_record_arrives_as_sent(target: Target, acks: str, codec: str) -> None:
    topic, sent = target.create_topic(), records()
    levels = {"0": 0, "1": 1, "all": "all"}
    async with producer_of(target, acks=levels[acks], compression_type=None if codec == "none" else codec) as producer:
        await produce(producer, topic, sent)
    assert_same(await read_all(target, topic, len(sent)), sent)


async def test_idempotent_producer_delivers_each_record_once(target: Target) -> None:
    topic, sent = target.create_topic(), records(400)
    async with producer_of(target, enable_idempotence=True) as producer:
        await produce(producer, topic, sent)
    assert_same(await read_all(target, topic, len(sent)), sent)


async def test_group_shares_partitions_and_resumes(target: Target) -> None:
    topic, group, sent = target.create_topic(), target.name("group"), records(60)
    async with (
        consumer_of(target, topic, group_id=group) as first,
        consumer_of(target, topic, group_id=group) as second,
    ):

        async def shares() -> list[int]:
            return sorted(len(member.assignment()) for member in (first, second))

        await until_equal(shares, [1, 2])
        async with producer_of(target) as producer:
            await produce(producer, topic, sent)
        arrived: list[Record] = []
        async with asyncio.timeout(TIMEOUT):
            while len(arrived) < len(sent):
                arrived += await poll(first, 100, within=0.3) + await poll(second, 100, within=0.3)
        assert_same(arrived, sent)
        await first.commit()
        await second.commit()
    later = records(6)
    async with producer_of(target) as producer:
        await produce(producer, topic, later)
    async with consumer_of(target, topic, group_id=group) as resumed:
        assert_same(await poll(resumed, len(later)), later)


async def test_transaction_commits_consumer_offsets(target: Target) -> None:
    source, sink, group, sent = target.create_topic(), target.create_topic(), target.name("group"), records(30)
    async with producer_of(target) as producer:
        await produce(producer, source, sent)
    async with (
        producer_of(target, transactional_id=target.name("transaction")) as producer,
        consumer_of(target, source, group_id=group, enable_auto_commit=False) as consumer,
    ):
        copied = await poll(consumer, len(sent))
        await producer.begin_transaction()
        await produce(producer, sink, copied[:7])
        await producer.abort_transaction()

        await producer.begin_transaction()
        await produce(producer, sink, copied)
        offsets = {partition: await consumer.position(partition) for partition in consumer.assignment()}
        await producer.send_offsets_to_transaction(offsets, group)
        await producer.commit_transaction()

        async def committed() -> dict[TopicPartition, int | None]:
            return {partition: await consumer.committed(partition) for partition in offsets}

        await until_equal(committed, offsets)  # aiokafka does not wait for the transaction's markers
    assert_same(await read_all(target, sink, len(sent), isolation_level="read_committed"), sent)
    assert_same(await read_all(target, sink, len(sent) + 7), copied[:7] + sent)


async def test_admin_requests_succeed(target: Target) -> None:
    topic, group = target.name("aiokafka"), target.name("group")
    # acks=all, because records can be deleted only up to the followers' high watermark.
    async with admin_of(target) as admin, producer_of(target, acks="all") as producer:
        created = await admin.create_topics([NewTopic(topic, PARTITIONS, target.brokers)])
        assert [error[1] for error in created.topic_errors] == [0]
        repeated = await admin.create_topics([NewTopic(topic, PARTITIONS, target.brokers)])
        assert [error[1] for error in repeated.topic_errors] == [36]  # TOPIC_ALREADY_EXISTS
        await admin.create_partitions({topic: NewPartitions(PARTITIONS + 1)})

        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": LONG_RETENTION_MS})])
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": ""})

        async def retention() -> list[tuple[str, str]]:
            (answer,) = await admin.describe_configs([resource])
            return [entry[:2] for entry in answer.resources[0][4]]

        await until_equal(retention, [("retention.ms", LONG_RETENTION_MS)])

        await produce(producer, topic, records(30))
        assert await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(4)}) == {TopicPartition(topic, 0): 4}
        async with consumer_of(target, topic, group_id=group, enable_auto_commit=False) as consumer:
            assert await consumer.beginning_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 4}
            await consumer.commit({TopicPartition(topic, 1): 3})
        offsets = await admin.list_consumer_group_offsets(group)
        assert {partition: value.offset for partition, value in offsets.items()} == {TopicPartition(topic, 1): 3}
        assert group in {listed[0] for listed in await admin.list_consumer_groups()}
        (described,) = await admin.describe_consumer_groups([group])
        assert [(found[1], found[2]) for found in described.groups] == [(group, "Empty")]

        cluster = await admin.describe_cluster()
        ports = [broker["port"] for broker in cluster["brokers"]]
        assert len(set(ports)) == target.brokers
        assert target.ports is None or all(port in target.ports for port in ports)
        deleted = await admin.delete_topics([topic])
        assert list(deleted.topic_error_codes) == [(topic, 0)]
