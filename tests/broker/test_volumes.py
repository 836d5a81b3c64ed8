"""Producers are throttled and paused before a disk of a real cluster is full, and paused if its usage is unknown."""

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from loadtest.testkit.kafka import KafkaCluster, start_tool, used_bytes
from tests.broker.topics import create_topic
from tests.broker.volumes import MIB, VOLUME_BYTES, UsageTopic, small_cluster, state, usage
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

BROKERS = 3
SOFT_FREE, HARD_FREE = 60, 40
"""Percent. A broker's own files take about 10 of its 96 MiB."""
FILL_BYTES_PER_SECOND = 10 * MIB
RECORD_BYTES = 64 * 1024

FRESHNESS_SECONDS = 2.0
INTERVAL_MS = 300
DELAY_MS = 800
TIMEOUT = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with small_cluster(tmp_path_factory.mktemp("small"), BROKERS) as running:
        yield running


@pytest.fixture
def start(cluster: KafkaCluster, start_weir: Callable[..., Weir]) -> Callable[..., tuple[Weir, UsageTopic]]:
    """`start(source=..., ...)`: a gateway with its own usage topic, and that topic."""

    def begin(**volumes: Any) -> tuple[Weir, UsageTopic]:
        topic = f"usage-{uuid4().hex[:8]}"
        settings = {"topic": topic, "freshness_seconds": FRESHNESS_SECONDS, "max_delay_ms": DELAY_MS}
        settings |= {"publish_interval_ms": INTERVAL_MS}
        gateway = start_weir(cluster.bootstrap_servers, quotas={"volumes": settings | volumes})
        return gateway, UsageTopic(cluster.bootstrap_servers, topic)

    return begin


def topic_on(cluster: KafkaCluster, broker: int) -> str:
    """Create a topic that only this broker has."""
    name = f"on-{broker}-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    topic = NewTopic(name, num_partitions=1, replica_assignment=[[broker]], config={"min.insync.replicas": "1"})
    admin.create_topics([topic])[name].result(TIMEOUT)
    wait_until(lambda: end_offset(cluster.bootstrap_servers, name) == 0, f"a leader of {name}")
    return name


def end_offset(bootstrap_servers: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "ends"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT)[1])
    except KafkaException:
        return -1  # its leader is not elected yet
    finally:
        consumer.close()


class Writer:
    """A producer of records of `size` bytes, two in a request, that runs until it is stopped. All records must arrive.

    It sends at most `FILL_BYTES_PER_SECOND`, and rests once it has sent `rest_after` records, until that is None.
    """

    def __init__(self, gateway: Weir, topic: str, size: int, rest_after: int | None = None) -> None:
        self.rest_after = rest_after
        self.acknowledged = 0
        self.failed: list[object] = []
        self._topic = topic
        self._record = bytes(size)
        self._stopped = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": gateway.bootstrap_servers,
                "enable.idempotence": True,
                "queue.buffering.max.messages": 8,
                "batch.num.messages": 2,
                "linger.ms": 0,
            }
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        sent = 0
        while not self._stopped.wait(len(self._record) / FILL_BYTES_PER_SECOND):
            try:
                if self.rest_after is None or sent < self.rest_after:
                    self._producer.produce(self._topic, self._record, callback=self._done)
                    sent += 1
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)
        assert self._producer.flush(TIMEOUT) == 0

    def _done(self, error: object, _: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed.append(error)


def requests(gateway: Weir, result: str) -> float:
    return gateway.metric("weir_volume_produce_requests_total", result=result)


def over_hard(gateway: Weir) -> set[str]:
    """Return the brokers with volumes over their hard limit, by the metrics."""
    consumed, limit = ("weir_volume_consumed_bytes", "weir_volume_hard_limit_bytes")
    brokers = gateway.label_values(consumed, "broker")
    return {broker for broker in brokers if gateway.metric(consumed, broker=broker) >= gateway.metric(limit, broker=broker)}


def test_volume_never_fills_up(cluster: KafkaCluster, start: Callable[..., tuple[Weir, UsageTopic]]) -> None:
    gateway, topic = start(
        soft={"type": "MinFreePercentage", "level": SOFT_FREE},
        hard={"type": "MinFreePercentage", "level": HARD_FREE},
        max_delay_ms=100,
        # On a busy machine a lookup may take long. Only the limits may pause here.
        freshness_seconds=TIMEOUT,
    )
    gateway.wait_for_volumes("OPEN")
    filled, other = topic_on(cluster, 0), topic_on(cluster, 1)
    volume = cluster.brokers[0].directory / "data"

    def ends() -> list[int]:
        return [end_offset(cluster.bootstrap_servers, name) for name in (filled, other)]

    between_limits = VOLUME_BYTES * (200 - SOFT_FREE - HARD_FREE) // 200
    filling = Writer(gateway, filled, RECORD_BYTES, rest_after=(between_limits - used_bytes(volume)) // RECORD_BYTES)
    with filling, Writer(gateway, other, 1_000) as bystander:
        # The bystander's disk always has room. The bystander is throttled and paused because of broker 0's disk.
        gateway.wait_for_volumes("THROTTLE")
        filling.rest_after = None
        gateway.wait_for_volumes("PAUSE")
        assert requests(gateway, "delayed") > 0
        wait_until(lambda: requests(gateway, "refused") >= 4, "both producers are refused")
        paused_at = used_bytes(volume)

        def nothing_is_appended() -> bool:
            before = ends()
            refused = requests(gateway, "refused")
            wait_until(lambda: requests(gateway, "refused") >= refused + 4, "both producers retry")
            return ends() == before

        # Requests that passed before may arrive a little later.
        wait_until(nothing_is_appended, "the logs stop growing")
        assert VOLUME_BYTES * (100 - HARD_FREE) / 100 <= paused_at <= used_bytes(volume) < 0.9 * VOLUME_BYTES
        assert gateway.metric("weir_volume_consumed_bytes", broker="0") > gateway.metric(
            "weir_volume_hard_limit_bytes", broker="0"
        )
        assert gateway.metric("weir_volume_consumed_bytes", broker="1") < gateway.metric(
            "weir_volume_hard_limit_bytes", broker="1"
        )

        # Consumers continue, and deleting records through the gateway ends the pause.
        consumer = Consumer({"bootstrap.servers": gateway.bootstrap_servers, "group.id": "reader", "enable.auto.commit": False})
        consumer.assign([TopicPartition(filled, 0, 0)])
        message = consumer.poll(TIMEOUT)
        assert message is not None
        assert message.error() is None
        consumer.close()
        filling.rest_after = 0  # the disk stays empty
        admin = AdminClient({"bootstrap.servers": gateway.bootstrap_servers})
        for name in (filled, other):
            records = TopicPartition(name, 0, end_offset(cluster.bootstrap_servers, name))
            admin.delete_records([records])[records].result(TIMEOUT)
        gateway.wait_for_volumes("OPEN")
        before = bystander.acknowledged
        wait_until(lambda: bystander.acknowledged > before + 4, "the bystander continues")
    assert (filling.failed, bystander.failed) == ([], [])
    assert ends() == [filling.acknowledged, bystander.acknowledged]
    changes = [event["state"] for event in gateway.events() if "volume_reason" in event]
    # A start may pause until the usage of each broker has been read.
    known = changes[changes.index("THROTTLE") - 1 :]
    assert known[:4] == ["OPEN", "THROTTLE", "PAUSE", "OPEN"] or known[:5] == ["OPEN", "THROTTLE", "PAUSE", "THROTTLE", "OPEN"]
    admin.delete_topics([filled, other])

    value = json.loads(dict(topic.records())[b"0"] or b"")
    assert value["Version"] == 1
    assert value["SnapshotAt"].endswith("Z")
    assert value["Hard limit"] == {"type": "MinFreePercentage", "level": HARD_FREE}
    assert value["Soft limit"] == {"type": "MinFreePercentage", "level": SOFT_FREE}
    assert value["Volumes"][0]["VolumeName"] == str(volume)
    assert value["Volumes"][0]["Capacity"] == VOLUME_BYTES
    assert 0 < value["Volumes"][0]["Consumed"] < VOLUME_BYTES


def test_usage_topic_is_compacted_to_one_message_a_broker(
    cluster: KafkaCluster, start: Callable[..., tuple[Weir, UsageTopic]]
) -> None:
    gateway, topic = start(publish_interval_ms=100)
    gateway.wait_for_volumes("OPEN")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    resource = ConfigResource(ResourceType.TOPIC, topic.topic)
    configs = admin.describe_configs([resource])[resource].result(TIMEOUT)
    assert configs["cleanup.policy"].value == "compact"
    described = admin.list_topics(topic.topic, TIMEOUT).topics[topic.topic]
    assert [len(partition.replicas) for partition in described.partitions.values()] == [BROKERS]

    # Only closed segments are compacted. With segments of a second the test can watch it.
    entry = ConfigEntry("segment.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic.topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT)
    wait_until(lambda: gateway.metric("weir_volume_published_total") >= 60 * BROKERS, "many messages are published")
    gateway.stop()

    def in_topic() -> Counter[bytes | None]:
        topic.publish(b"rolls the last segment", key=b"roll")
        return Counter(key for key, _ in topic.records())

    wait_until(
        lambda: {key: count for key, count in in_topic().items() if key != b"roll"} == {b"0": 1, b"1": 1, b"2": 1},
        "one message per broker is left",
    )
    gateway.start()  # because the fixture stops it


@pytest.mark.parametrize("when_unknown", ["PAUSE", "OPEN"])
def test_missing_usage_pauses_in_time_and_recovers(
    cluster: KafkaCluster, start: Callable[..., tuple[Weir, UsageTopic]], when_unknown: str
) -> None:
    gateway, topic = start(source="topic", when_unknown=when_unknown)
    everyone = tuple(range(BROKERS))
    wait_until(lambda: gateway.metric("weir_volume_connected", role="reader") == 1, "the topic is read")
    assert state(gateway) == when_unknown
    lacking = 1 if when_unknown == "PAUSE" else 0

    def wait_until_known() -> None:
        """Publish fresh messages until the gateway knows them. On a busy machine one may go stale before its effect shows."""

        def known() -> bool:
            topic.publish(usage(100), brokers=everyone)
            return gateway.metric("weir_volume_unknown_brokers") == 0 and state(gateway) == "OPEN"

        wait_until(known, "all usage is known", 90)

    def check_unknown(what: str) -> None:
        wait_until(lambda: gateway.metric("weir_volume_unknown_brokers") > 0, what)
        gateway.wait_for_volumes(when_unknown)
        assert gateway.metric("weir_volume_data_missing") == lacking

    wait_until_known()

    # One broker's usage becomes stale while the others stay fresh. The log names the broker.
    def named() -> bool:
        topic.publish(usage(100), brokers=everyone[1:])
        return any(event.get("brokers_unknown") == [0] for event in gateway.events())

    wait_until(named, "the log names the broker")
    check_unknown("broker 0 is stale")
    wait_until_known()
    # Usage that was captured too long ago is stale on arrival.
    topic.publish(usage(100, age=FRESHNESS_SECONDS + 60), brokers=(1,))
    check_unknown("all is stale")

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    wait_until_known()
    admin.delete_topics([topic.topic])[topic.topic].result(TIMEOUT)
    check_unknown("the topic is gone")
    wait_until(lambda: topic.topic in admin.list_topics(timeout=TIMEOUT).topics, "the topic is created again")
    wait_until(lambda: gateway.metric("weir_volume_connected", role="reader") == 1, "the topic is read again")
    wait_until_known()

    # The reader gets no answers.
    for node in cluster.brokers:
        node.freeze()
    try:
        check_unknown("nobody answers")
    finally:
        for node in cluster.brokers:
            node.thaw()
    cluster.wait_until_ready()
    wait_until_known()


GARBAGE: dict[str, tuple[bytes, bytes, str]] = {
    "not JSON": (b"0", b"{", "bad_json"),
    "not UTF-8": (b"0", b"\xff\xfe", "bad_json"),
    "NaN": (b"0", usage(100).replace(b"1000", b"NaN"), "bad_json"),
    "a list": (b"0", b"[]", "bad_type"),
    "no volumes": (b"0", usage(100, Volumes=None), "missing_field"),
    "negative": (b"0", usage(-1), "negative_number"),
    "text for a number": (b"0", usage(100).replace(b"1000", b'"1000"'), "bad_type"),
    "unknown version": (b"0", usage(100, Version=2), "unknown_version"),
    "no time": (b"0", usage(100, SnapshotAt="yesterday"), "bad_time"),
    "not a broker": (b"zero", usage(950), "bad_key"),
    "too long": (b"0", b" " * 900_000 + usage(950, x="y" * 150_000), "too_large"),
}


def test_invalid_messages_are_skipped_and_counted(start: Callable[..., tuple[Weir, UsageTopic]]) -> None:
    gateway, topic = start(source="topic", freshness_seconds=600)
    topic.publish(usage(100), brokers=tuple(range(BROKERS)))
    gateway.wait_for_volumes("OPEN")
    expected: Counter[str] = Counter()
    for key, value, reason in GARBAGE.values():
        if reason != "too_large":  # the brokers themselves refuse these
            topic.publish(value, key=key)
            expected[reason] += 1
    topic.publish(usage(501), brokers=(2,))
    gateway.wait_for_volumes("THROTTLE")
    skipped = {reason: gateway.metric("weir_volume_messages_skipped_total", reason=reason) for reason in expected}
    assert skipped == dict(expected)
    topic.publish(usage(100), brokers=(2,))
    gateway.wait_for_volumes("OPEN")


def test_producers_outlast_a_pause(cluster: KafkaCluster, start: Callable[..., tuple[Weir, UsageTopic]]) -> None:
    """The producers are Java, librdkafka and aiokafka with their defaults, one with acks=0, and one that is exempt."""
    count = 20
    gateway, usage_topic = start(source="topic", freshness_seconds=600)
    everyone = tuple(range(BROKERS))
    usage_topic.publish(usage(950), brokers=everyone)
    gateway.wait_for_volumes("PAUSE")
    names = ("java", "librdkafka", "acks0", "aiokafka")
    topics = {
        name: create_topic(cluster.bootstrap_servers, f"{name}-{uuid4().hex[:8]}", partitions=1, replicas=3) for name in names
    }
    servers = ("--bootstrap-server", gateway.bootstrap_servers, "--topic", topics["java"])
    java = start_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *(*servers, "--num-records", str(count), "--record-size", "100", "--throughput", "-1"),
    )
    failed: list[object] = []
    plain = Producer({"bootstrap.servers": gateway.bootstrap_servers, "linger.ms": 0, "batch.num.messages": 3})
    silent = Producer({"bootstrap.servers": gateway.bootstrap_servers, "linger.ms": 0, "acks": 0})
    for index in range(count):
        for producer, name in ((plain, "librdkafka"), (silent, "acks0")):
            producer.produce(
                topics[name], str(index).encode(), callback=lambda error, _: failed.append(error) if error else None
            )

    async def with_aiokafka() -> None:
        async with AIOKafkaProducer(bootstrap_servers=gateway.bootstrap_servers, client_id="aio") as producer:
            sends = [await producer.send(topics["aiokafka"], str(index).encode()) for index in range(count)]
            await asyncio.gather(*sends)

    aiokafka = threading.Thread(target=lambda: asyncio.run(with_aiokafka()))
    aiokafka.start()
    # The pause lasts at least three rounds of refusals and retries.
    wait_until(lambda: requests(gateway, "refused") >= 12 and requests(gateway, "put_off") >= 3, "refused producers", TIMEOUT)
    assert {end_offset(cluster.bootstrap_servers, name) for name in topics.values()} == {0}
    usage_topic.publish(usage(100), brokers=everyone)
    assert f"{count} records sent" in java.finish(TIMEOUT).splitlines()[-1]
    aiokafka.join(TIMEOUT)
    assert (plain.flush(TIMEOUT), silent.flush(TIMEOUT)) == (0, 0)
    assert failed == []
    for name, topic in topics.items():
        wait_until(lambda topic=topic: end_offset(cluster.bootstrap_servers, topic) >= count, f"{name}: records arrive")
        assert end_offset(cluster.bootstrap_servers, topic) == count, name
    assert gateway.metric("weir_protocol_errors_total") == 0


def test_transaction_and_exempt_clients_survive_a_pause(cluster: KafkaCluster, start_weir: Callable[..., Weir]) -> None:
    name = f"usage-{uuid4().hex[:8]}"
    volumes = {"source": "topic", "topic": name, "freshness_seconds": 600, "max_delay_ms": DELAY_MS}
    exempt = {"client-id": "internal", "exempt": ["volumes"]}
    gateway = start_weir(cluster.bootstrap_servers, quotas={"volumes": volumes, "entities": [exempt]})
    # The usage topic's own traffic passes the gateway while other producers are paused for lack of usage.
    usage_topic = UsageTopic(gateway.bootstrap_servers, name)
    wait_until(lambda: gateway.metric("weir_volume_connected", role="reader") == 1, "the topic is read")
    assert state(gateway) == "PAUSE"
    usage_topic.publish(usage(100), brokers=tuple(range(BROKERS)))
    gateway.wait_for_volumes("OPEN")
    topic = create_topic(cluster.bootstrap_servers, f"txn-{uuid4().hex[:8]}", partitions=1, replicas=3)
    producer = Producer({"bootstrap.servers": gateway.bootstrap_servers, "transactional.id": topic, "linger.ms": 0})
    producer.init_transactions(TIMEOUT)
    producer.begin_transaction()
    producer.produce(topic, b"first")
    producer.flush(TIMEOUT)
    usage_topic.publish(usage(950), brokers=(0,))
    gateway.wait_for_volumes("PAUSE")
    producer.commit_transaction(TIMEOUT)
    assert state(gateway) == "PAUSE"

    internal = Producer({"bootstrap.servers": gateway.bootstrap_servers, "client.id": "internal", "linger.ms": 0})
    internal.produce(topic, b"third")
    assert internal.flush(TIMEOUT) == 0
    assert state(gateway) == "PAUSE"


def test_agent_publishes_usage_of_its_broker(cluster: KafkaCluster, tmp_path: Path) -> None:
    topic = UsageTopic(cluster.bootstrap_servers, f"usage-{uuid4().hex[:8]}")
    gateway = Weir(tmp_path, cluster.bootstrap_servers, {"quotas": {"volumes": {"topic": topic.topic}}})
    path = cluster.brokers[1].directory / "data"
    command = [sys.executable, "-m", "gateway", "volumes", "publish", "--config", str(gateway.config_file), "--once"]
    agent = subprocess.run(
        [*command, "--broker-id", "1", "--path", str(path)], capture_output=True, timeout=TIMEOUT, check=False
    )
    assert agent.returncode == 0, agent.stderr.decode()
    ((key, value),) = topic.records()
    message = json.loads(value or b"")
    assert key == b"1"
    assert [volume["VolumeName"] for volume in message["Volumes"]] == [str(path)]
    assert message["Volumes"][0]["Capacity"] == VOLUME_BYTES
    assert abs(message["Volumes"][0]["Consumed"] - used_bytes(path)) < 4 * MIB

    without = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False)
    assert without.returncode == 1
    assert b"quotas.volumes.agent.broker_id: is missing" in without.stderr
