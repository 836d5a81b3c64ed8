"""Topic quotas before a real Kafka: shares, rejections and byte counts. Rejected producers lose and reorder no record."""

import asyncio
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import uuid4

import aiokafka
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.features.topic_quotas.rejections import FOLD_SECONDS
from loadtest.testkit.kafka import KafkaCluster, run_tool
from loadtest.testkit.numbered_records import PRODUCER, arrived, producer_arguments
from protocol.api_keys import ApiKey
from tests.broker.topics import create_topic
from tests.protocol import codec
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

TOTAL, PAYMENTS = 1_000_000, 500_000
"""Bytes per second: a tenth of the issue's figure, so that the test is short."""
FIVE = ["payments", "orders", "clicks", "logs", "audit"]
RECORD = 1_000
BUSY_RECORDS = 200
COLD_RECORDS = 50
"""Bytes per second for each of four topics: a quarter of a topic's share."""
TIMEOUT = 60.0


SMALLEST = {"samples": 2, "seconds": 1}


def topics_section(
    explicit: dict[str, int] | None = None, total: int = TOTAL, window: dict[str, int] = SMALLEST, **rest: Any
) -> dict[str, Any]:
    topics = {"total.bytes.in.per.sec.threshold": total, "bytes.in.per.sec.threshold": explicit or {}, "meter": "window"}
    return {"window": window, "topics": topics | rest}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A cluster with only this module's topics, because topics share the rest of the total."""
    with KafkaCluster(tmp_path_factory.mktemp("kafka")) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def gateway(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    with Weir(tmp_path_factory.mktemp("weir"), cluster.bootstrap_servers, {"quotas": topics_section()}) as weir:
        yield weir


@pytest.fixture
def topics(cluster: KafkaCluster) -> Iterator[Callable[..., None]]:
    """Creates topics and deletes them at the end. Names are not reused, because Weir notices deletions late."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    made: list[str] = []

    def create(*names: str, partitions: int = 2, **config: str) -> None:
        for name in names:
            made.append(name)
            if config:
                admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(TIMEOUT)
            else:
                create_topic(cluster.bootstrap_servers, name, partitions)

    yield create
    for future in admin.delete_topics(made).values():
        future.result(TIMEOUT)


def report(gateway: Weir) -> dict[str, Any]:
    answer: dict[str, Any] = gateway.api("topics")
    answer["rows"] = {row["topic"]: row for row in answer["rows"]}
    return answer


def thresholds(gateway: Weir) -> dict[str, float]:
    return {name: row["threshold"] for name, row in report(gateway)["rows"].items() if row["threshold"] is not None}


def configure(gateway: Weir, explicit: dict[str, int] | None = None, **rest: Any) -> None:
    """Change the thresholds of a running gateway and wait until it has applied or refused them."""
    done = "weir_config_reloads_total"
    before = gateway.metric(done)
    gateway.write_config(gateway.config | {"quotas": topics_section(explicit, **rest)})
    gateway.reload()
    wait_until(lambda: gateway.metric(done) > before, "the config is read")


@pytest.fixture
def configured(gateway: Weir) -> Iterator[Callable[..., None]]:
    yield lambda explicit=None, **rest: configure(gateway, explicit, **rest)
    configure(gateway)


def shares(explicit: dict[str, int], names: Iterable[str]) -> dict[str, float]:
    rest = [name for name in names if name not in explicit]
    return {name: explicit.get(name, (TOTAL - sum(explicit.values())) / len(rest)) for name in names}


def test_shares_follow_topics_and_excess_sum_is_refused(gateway, topics, configured) -> None:
    topics(*FIVE)
    configured({"payments": PAYMENTS})
    wait_until(lambda: thresholds(gateway) == shares({"payments": PAYMENTS}, FIVE), "the other topics share the rest")
    assert shares({"payments": PAYMENTS}, FIVE)["orders"] == 125_000

    topics("sixth")
    six = [*FIVE, "sixth"]
    wait_until(lambda: thresholds(gateway) == shares({"payments": PAYMENTS}, six), "the new topic has its share")

    configured({"payments": 400_000, "orders": 200_000})
    assert thresholds(gateway) == shares({"payments": 400_000, "orders": 200_000}, six)

    refused = gateway.metric("weir_config_reloads_total", result="failure")
    configured({"payments": 700_000, "orders": 400_000})
    assert gateway.metric("weir_config_reloads_total", result="failure") > refused
    assert "add up to 1100000, 100000 more than total.bytes.in.per.sec.threshold 1000000" in gateway.log()
    assert thresholds(gateway) == shares({"payments": 400_000, "orders": 200_000}, six)


class Sender:
    """A librdkafka producer that numbers its records and keeps what failed."""

    def __init__(self, gateway: Weir, **config: Any) -> None:
        self.failed: list[KafkaError] = []
        self.sent: dict[str, int] = {}
        self._producer = Producer(
            {"bootstrap.servers": gateway.bootstrap_servers, "linger.ms": 5, "batch.size": 20_000, **config}
        )

    def send(self, topic: str, count: int, size: int = RECORD) -> None:
        """Queue records. Returns when the queue has room, not when they are sent."""
        for _ in range(count):
            number = self.sent.get(topic, 0)
            while True:
                try:
                    self._producer.produce(topic, b"%08d" % number + bytes(size - 8), partition=number % 2, callback=self._note)
                    break
                except BufferError:
                    self._producer.poll(0.1)
            self.sent[topic] = number + 1
        self._producer.poll(0)

    def keep_busy(self, topic: str) -> None:
        """Send some records, unless enough are queued. A muted producer could not flush more in time."""
        if len(self._producer) < BUSY_RECORDS:
            self.send(topic, BUSY_RECORDS)
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(TIMEOUT) == 0

    def _note(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.failed.append(error)


def bytes_on_disk(cluster: KafkaCluster, topic: str) -> int:
    """Return the bytes in the broker's log of a topic."""
    segments = list(cluster.brokers[0].directory.rglob(f"{topic}-[0-9]/*.log"))
    assert segments
    return sum(segment.stat().st_size for segment in segments)


def assert_once_and_in_order(cluster: KafkaCluster, topic: str, numbers: Iterable[int]) -> None:
    """Fail unless the topic holds these records once each, in order in both partitions."""
    records = arrived(cluster.bootstrap_servers, topic)
    assert records.in_order
    assert records.numbers == list(numbers)


def test_hot_topic_is_rejected_and_meters_match_the_log(cluster, gateway, topics) -> None:
    one = uuid4().hex[:6]
    hottest, *others = names = [f"even-{one}-{name}" for name in ("hot", 1, 2, 3, 4)]
    topics(*names)
    wait_until(lambda: thresholds(gateway) == shares({}, names), "five topics have a fifth each")
    hot = Sender(gateway, **{"enable.idempotence": True})
    cold = Sender(gateway)

    # One topic is over its share, but the total is not exceeded, so none is rejected.
    hot.send(hottest, 800)
    hot.flush()
    found = report(gateway)
    assert found["rows"][hottest]["appended_bytes"] > found["rows"][hottest]["threshold"]
    assert found["rows"][hottest]["throttled_bytes"] == 0

    began, sent = time.monotonic(), 0
    while report(gateway)["rows"][hottest]["throttled_total"] < 12:
        hot.keep_busy(hottest)
        due = int((time.monotonic() - began) * COLD_RECORDS) - sent
        for name in others:
            cold.send(name, min(due, COLD_RECORDS // 2))  # after a stall, too, it stays within its share
        sent += due
        cold.flush()
    hot.flush()
    seconds = time.monotonic() - began

    rows = report(gateway)["rows"]
    assert hot.failed == cold.failed == []
    assert rows[hottest]["throttled_bytes"] > 0
    assert {name: rows[name]["throttled_total"] for name in others} == dict.fromkeys(others, 0)
    # The long-run rate is the total, plus the bytes in the window and in flight when the total is first exceeded.
    assert rows[hottest]["appended_bytes"] < 1.5 * TOTAL * (seconds + 3)
    for name in names:
        assert (
            rows[name]["appended_bytes"] == bytes_on_disk(cluster, name) == gateway.metric("weir_topic_bytes_total", topic=name)
        )
        assert rows[name]["refused_bytes"] == {}
    assert_once_and_in_order(cluster, hottest, range(hot.sent[hottest]))
    lines = [event["msg"] for event in gateway.events() if hottest in event["msg"]]
    assert 0 < len(lines) <= 2 * (seconds // FOLD_SECONDS + 2)
    assert re.fullmatch(rf"topic {hottest}: 1 request of \d+ bytes not appended: quota \(\d+ of 200000 bytes/s\)", lines[0])


def test_broker_errors_are_counted_by_reason(cluster, gateway, topics) -> None:
    topics("small", **{"max.message.bytes": "5000"})
    sender = Sender(gateway)
    sender.send("small", 4)
    sender.flush()
    sender.send("small", 1, size=20_000)
    sender.flush()
    assert [error.code() for error in sender.failed] == [KafkaError.MSG_SIZE_TOO_LARGE]
    row = report(gateway)["rows"]["small"]
    assert row["appended_bytes"] == bytes_on_disk(cluster, "small")
    assert row["refused_bytes"].keys() == {"MESSAGE_TOO_LARGE"}
    assert 20_000 < row["refused_bytes"]["MESSAGE_TOO_LARGE"] < 20_200
    assert gateway.metric("weir_topic_refused_bytes_total", topic="small", reason="MESSAGE_TOO_LARGE") > 20_000


COUNT, SLOW = 700, 100_000
"""Records, and a total that any producer exceeds if it sends them at once."""


def with_librdkafka(gateway: Weir, topic: str, **config: str) -> None:
    sender = Sender(gateway, **config)
    if "transactional.id" in config:
        sender._producer.init_transactions()
        sender._producer.begin_transaction()
    for _ in range(7):
        sender.send(topic, COUNT // 7)
    sender.flush()
    if "transactional.id" in config:
        sender._producer.commit_transaction()
    assert sender.failed == []


def with_aiokafka(gateway: Weir, topic: str, **config: Any) -> None:
    async def send() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=gateway.bootstrap_servers, linger_ms=5, **config) as producer:
            if "transactional_id" in config:
                await producer.begin_transaction()
            sent = [await producer.send(topic, b"%08d" % n + bytes(RECORD - 8), partition=n % 2) for n in range(COUNT)]
            await asyncio.gather(*sent)
            if "transactional_id" in config:
                await producer.commit_transaction()

    asyncio.run(send())


def with_java(gateway: Weir, topic: str, **config: str) -> None:
    settings = [f"{key}={value}" for key, value in config.items()]
    output = run_tool(
        PRODUCER, *producer_arguments(gateway.bootstrap_servers, topic, COUNT, "linger.ms=5", *settings, size=RECORD)
    )
    failed, retried = output.splitlines()
    assert failed == "failed 0"
    assert int(retried.removeprefix("retried ")) > 0


@pytest.mark.parametrize(
    ("send", "config"),
    [
        pytest.param(with_librdkafka, {"enable.idempotence": True}, id="librdkafka-idempotent"),
        pytest.param(with_librdkafka, {"transactional.id": "one"}, id="librdkafka-transactional"),
        pytest.param(with_aiokafka, {"enable_idempotence": True}, id="aiokafka-idempotent"),
        pytest.param(with_aiokafka, {"transactional_id": "two"}, id="aiokafka-transactional"),
        pytest.param(with_java, {"enable.idempotence": "true"}, id="java-idempotent"),
        pytest.param(with_java, {"transactional.id": "three"}, id="java-transactional"),
    ],
)
def test_producers_survive_rejections_without_loss_in_order(cluster, gateway, topics, configured, send, config) -> None:
    topic = f"hot-{uuid4().hex[:8]}"
    topics(topic)
    configured(total=SLOW)
    send(gateway, topic, **config)
    assert gateway.metric("weir_topic_throttled_requests_total", topic=topic) > 0
    assert_once_and_in_order(cluster, topic, range(COUNT))


def test_only_the_hot_topic_of_a_request_is_rejected(cluster, gateway, topics, configured) -> None:
    """The Java client sends both topics in one request, by topic id (v13)."""
    topics("java-hot", "java-cold")
    configured({"java-cold": 280_000}, total=400_000)
    wait_until(lambda: thresholds(gateway) == {"java-hot": 120_000, "java-cold": 280_000}, "both thresholds are known")
    pattern = ",".join(["java-hot"] * 7 + ["java-cold"])
    settings = ("linger.ms=20", "enable.idempotence=true")
    output = run_tool(PRODUCER, *producer_arguments(gateway.bootstrap_servers, pattern, 1600, *settings, size=RECORD))
    assert output.splitlines()[0] == "failed 0"
    rows = report(gateway)["rows"]
    assert rows["java-hot"]["throttled_total"] > 0
    assert rows["java-cold"]["throttled_total"] == 0
    for name in ("java-hot", "java-cold"):
        assert rows[name]["appended_bytes"] == bytes_on_disk(cluster, name)
        assert_once_and_in_order(cluster, name, [n for n in range(1600) if (n % 8 == 7) == (name == "java-cold")])


def records(size: int) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 10_000_000)
    builder.append(0, 1_700_000_000_000, None, bytes(size), [])
    return bytes(builder.build())


def produce(acks: int, topics: dict[str, bytes], correlation_id: int) -> bytes:
    data = [{"name": name, "partition_data": [{"index": 0, "records": batch}]} for name, batch in topics.items()]
    return codec.encode_request(
        ApiKey.PRODUCE, 9, {"acks": acks, "timeout_ms": 1000, "topic_data": data}, correlation_id, "raw"
    )


def test_rejection_without_acks_closes_the_connection(cluster, gateway, topics, configured) -> None:
    topics("raw-hot", "raw-cold")
    configured(total=TOTAL // 20, window={"samples": 2, "seconds": 30})  # longer than this test
    wait_until(lambda: set(thresholds(gateway).values()) == {TOTAL / 40}, "both thresholds are known")
    batch = records(900_000)
    with socket.create_connection(("127.0.0.1", gateway.ports[1]), timeout=TIMEOUT) as client:
        for correlation_id in range(4):
            client.sendall(produce(1, {"raw-hot": batch}, correlation_id))
            assert client.recv(1_000)[4:8] == correlation_id.to_bytes(4, "big")
        assert report(gateway)["rows"]["raw-hot"]["rejected"]
        client.sendall(produce(0, {"raw-cold": records(10)}, 8))
        client.sendall(produce(1, {"raw-cold": records(10)}, 9))
        assert client.recv(1_000)[4:8] == (9).to_bytes(4, "big")
        client.sendall(produce(0, {"raw-hot": batch, "raw-cold": records(20)}, 10))
        assert client.recv(1_000) == b""
    rest = len(records(10)) * 2 + len(records(20))
    wait_until(lambda: bytes_on_disk(cluster, "raw-cold") == rest, "the rest of the last request is appended")
    wait_until(lambda: report(gateway)["rows"]["raw-cold"]["appended_bytes"] == rest, "the rest is counted")


INVALID, UNREADABLE = (bytes(10), 87), (bytes(20), 2)
"""Records, and Kafka's error. If it can't read some records, it refuses the whole request."""


@pytest.mark.parametrize(("invalid", "error"), [INVALID, UNREADABLE], ids=["invalid", "unreadable"])
def test_appended_records_beside_refused_ones_count(cluster, gateway, topics, invalid, error) -> None:
    """For a partition that is named twice, Kafka has one result."""
    topic = f"raw-twice-{error}"
    topics(topic)
    wait_until(lambda: topic in report(gateway)["rows"], "the topic is known")
    partitions = [{"index": 0, "records": records(10)}, {"index": 0, "records": invalid}]
    values = {"acks": 1, "timeout_ms": 1000, "topic_data": [{"name": topic, "partition_data": partitions}]}
    with socket.create_connection(("127.0.0.1", gateway.ports[1]), timeout=TIMEOUT) as client:
        client.sendall(codec.encode_request(ApiKey.PRODUCE, 9, values, 1, "raw"))
        answer = codec.decode_response(ApiKey.PRODUCE, 9, client.recv(1_000))
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == error
    appended = len(records(10)) if error == INVALID[1] else 0
    assert report(gateway)["rows"][topic]["appended_bytes"] == bytes_on_disk(cluster, topic) == appended


def test_bytes_without_acks_count_beside_a_refused_partition(cluster, gateway, topics) -> None:
    """Kafka appends the good partitions, and closes the connection for the other one. A malformed request ends it, too."""
    topics("raw-good")
    wait_until(lambda: "raw-good" in report(gateway)["rows"], "the topic is known")
    malformed = bytes(codec.encode_request(ApiKey.HEARTBEAT, 4, {"group_id": "g", "member_id": "m"}, 9, "raw")[:-1])
    malformed = (len(malformed) - 4).to_bytes(4, "big") + malformed[4:]
    for behind in (produce(0, {"raw-good": records(30), "raw-unknown": records(1)}, 2), malformed):
        with socket.create_connection(("127.0.0.1", gateway.ports[1]), timeout=TIMEOUT) as client:
            client.sendall(produce(0, {"raw-good": records(10)}, 1) + behind)
            assert client.recv(1_000) == b""
    size = len(records(10)) * 2 + len(records(30))
    wait_until(lambda: bytes_on_disk(cluster, "raw-good") == size, "the good partitions are appended")
    wait_until(lambda: report(gateway)["rows"]["raw-good"]["appended_bytes"] == size, "they are counted")
