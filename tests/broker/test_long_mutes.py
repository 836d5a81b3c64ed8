"""KIP-219's test plan with real clients: one request mutes its client for seconds, without any other effect."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

from loadtest.testkit.kafka import KafkaCluster, run_tool
from tests.broker.rates import wait_for_rate
from tests.broker.topics import create_topic
from tests.weir_process import Weir, wait_until

pytestmark = [
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("collected_garbage"),
]

JAVA = Path(__file__).with_name("LongMute.java")
QUOTA = 50_000
"""Bytes per second. With the smallest window the burst is one second's worth."""
RECORD = 300_000
MUTE_SECONDS = (RECORD - QUOTA) / QUOTA
DELAY_SECONDS = 20.0
"""Of a busy machine. A client that gave up its connection would wait for its timeout of 30 s or more."""
TIMEOUT = 60.0

CONSUMER_QUOTA = 1_000_000
CONSUMED = 10_000_000
VALUE = 10_000


@pytest.fixture(scope="module")
def weir(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    """A gateway with small quotas for each client. The client-id `reader` only reads at an even rate."""
    low = {"client-id": "<default>", "producer_byte_rate": QUOTA, "consumer_byte_rate": QUOTA}
    entities = [low, {"client-id": "filler", "exempt": True}, {"client-id": "reader", "consumer_byte_rate": CONSUMER_QUOTA}]
    config = {"quotas": {"window": {"samples": 2, "seconds": 1}, "entities": entities}}
    with Weir(tmp_path_factory.mktemp("weir"), kafka.bootstrap_servers, config) as gateway:
        yield gateway


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    """A topic with one partition."""
    return create_topic(kafka.bootstrap_servers, f"mute-{uuid4().hex[:8]}", partitions=1)


class Counts:
    """The gateway's accepted connections and a client's early requests."""

    def __init__(self, gateway: Weir, client_id: str) -> None:
        self._gateway = gateway
        self._client_id = client_id

    def accepted(self) -> float:
        return self._gateway.metric("weir_connections_accepted_total")

    def early(self) -> int:
        rows = [row for row in self._gateway.usage() if row["client_id"] == self._client_id]
        assert rows
        return sum(row["early_total"] for row in rows)


class Observed(NamedTuple):
    """The seconds from the first request to the second record, and the connections opened between the two records."""

    seconds: float
    opened: float


def twice(step: Callable[[int], object], accepted: Callable[[], float]) -> Observed:
    """Send or read record 0 and then record 1. The mute begins after the first request, however late its client sees that."""
    begun = time.monotonic()
    step(0)
    opened = accepted()
    step(1)
    return Observed(time.monotonic() - begun, accepted() - opened)


def _has_coordinator(consumer: Consumer, partition: TopicPartition) -> bool:
    """Return False while a new cluster still makes its offsets topic. Raises KafkaException for other errors."""
    try:
        consumer.committed([partition], TIMEOUT)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.NOT_COORDINATOR:
            return False
        raise
    return True


def librdkafka(servers: str, topic: str, client_id: str, accepted: Callable[[], float]) -> list[Observed]:
    errors: list[KafkaError] = []
    config = {"bootstrap.servers": servers, "client.id": client_id, "error_cb": errors.append}
    producer = Producer(config | {"linger.ms": 0, "message.send.max.retries": 0})

    def deliver(_: int) -> None:
        failed: list[KafkaError] = []
        producer.produce(
            topic, bytes(RECORD), partition=0, on_delivery=lambda error, _: failed.append(error) if error else None
        )
        assert producer.flush(TIMEOUT) == 0
        assert failed == []

    produced = twice(deliver, accepted)
    with closing(Consumer(config | {"group.id": client_id, "enable.auto.commit": False})) as consumer:
        partition = TopicPartition(topic, 0, OFFSET_BEGINNING)
        # librdkafka connects to the coordinator now, not between two records.
        wait_until(lambda: _has_coordinator(consumer, partition), "connection to the group coordinator")
        consumer.assign([partition])

        def read(offset: int) -> None:
            message = consumer.poll(TIMEOUT)
            assert message is not None
            assert message.error() is None
            assert message.offset() == offset

        consumed = twice(read, accepted)
    assert errors == []
    return [produced, consumed]


def aiokafka(servers: str, topic: str, client_id: str, accepted: Callable[[], float]) -> list[Observed]:
    with asyncio.Runner() as loop:
        producer = loop.run(_started(lambda: AIOKafkaProducer(bootstrap_servers=servers, client_id=client_id)))
        try:
            produced = twice(
                lambda _: loop.run(asyncio.wait_for(producer.send_and_wait(topic, bytes(RECORD), partition=0), TIMEOUT)),
                accepted,
            )
        finally:
            loop.run(producer.stop())
        reading = {"bootstrap_servers": servers, "client_id": client_id, "auto_offset_reset": "earliest"}
        consumer = loop.run(_started(lambda: AIOKafkaConsumer(**reading), AiokafkaPartition(topic, 0)))
        try:

            def read(offset: int) -> None:
                assert loop.run(asyncio.wait_for(consumer.getone(), TIMEOUT)).offset == offset

            return [produced, twice(read, accepted)]
        finally:
            loop.run(consumer.stop())


async def _started(client: Callable[[], Any], *partitions: AiokafkaPartition) -> Any:
    """Make a client of aiokafka within the loop, and start it. A consumer is assigned to its partitions."""
    made = client()
    await made.start()
    if partitions:
        made.assign(partitions)
    return made


def kafka_python(servers: str, topic: str, client_id: str, accepted: Callable[[], float]) -> list[Observed]:
    with closing(KafkaProducer(bootstrap_servers=servers, client_id=client_id, retries=0)) as producer:
        produced = twice(lambda _: producer.send(topic, bytes(RECORD), partition=0).get(TIMEOUT), accepted)
    with closing(KafkaConsumer(bootstrap_servers=servers, client_id=client_id, auto_offset_reset="earliest")) as consumer:
        consumer.assign([PythonPartition(topic, 0)])

        def read(offset: int) -> None:
            assert next(consumer).offset == offset

        return [produced, twice(read, accepted)]


@pytest.mark.parametrize("client", [librdkafka, aiokafka, kafka_python])
def test_long_mute_costs_a_client_only_time(weir: Weir, topic: str, client: Callable[..., list[Observed]]) -> None:
    counts = Counts(weir, client.__name__)
    for observed in client(weir.bootstrap_servers, topic, client.__name__, counts.accepted):
        assert MUTE_SECONDS - 0.5 < observed.seconds < MUTE_SECONDS + DELAY_SECONDS
        assert observed.opened == 0, "a connection was lost"
    if client is kafka_python:  # the two other clients ignore throttle times
        assert counts.early() == 0


def test_java_client_waits_longer_than_its_request_timeout(weir: Weir, topic: str) -> None:
    counts = Counts(weir, "java")
    record = 2 * RECORD  # a mute of 11 s, and a request timeout of 10 s
    output = run_tool(JAVA, weir.bootstrap_servers, topic, str(record), "java")
    mute = (record - QUOTA) / QUOTA
    lines = dict(line.split(maxsplit=1) for line in output.splitlines() if line)
    for what in ("PRODUCED", "CONSUMED"):
        assert mute - 0.5 < float(lines[what]) < mute + DELAY_SECONDS
    assert lines["CONNECTIONS"] == "0 0"
    assert counts.early() == 0


def test_consumer_is_throttled_to_its_quota(weir: Weir, topic: str) -> None:
    producer = Producer({"bootstrap.servers": weir.bootstrap_servers, "client.id": "filler", "linger.ms": 5})
    count = CONSUMED // VALUE
    for number in range(count):
        producer.produce(topic, number.to_bytes(4, "big") + bytes(VALUE - 4), partition=0)
        producer.poll(0)
    assert producer.flush(TIMEOUT) == 0
    config = {"bootstrap.servers": weir.bootstrap_servers, "client.id": "reader", "group.id": topic}
    arrived: list[int] = []
    enough = threading.Event()

    def read_again_and_again() -> None:
        with closing(Consumer(config | {"enable.auto.commit": False, "max.partition.fetch.bytes": 100_000})) as consumer:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            while not enough.is_set():
                for message in consumer.consume(100, timeout=0.2):
                    assert message.error() is None
                    arrived.append(int.from_bytes((message.value() or b"")[:4], "big"))
                    if message.offset() == count - 1:
                        consumer.seek(TopicPartition(topic, 0, 0))

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_again_and_again)
        try:
            wait_for_rate(lambda: len(arrived) * VALUE, CONSUMER_QUOTA)
            wait_until(lambda: len(arrived) >= count or reading.done(), "all records arrive")
        finally:
            enough.set()
        reading.result(TIMEOUT)
    assert arrived == [number % count for number in range(len(arrived))]
