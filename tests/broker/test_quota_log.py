"""Quotas set through one gateway apply at all: over a compacted topic, after kills, and after a start without Kafka."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from loadtest.testkit.kafka import KafkaCluster, free_port
from tests.broker.request_client import RequestClient
from tests.broker.test_quota_api import alter, described_by, parts, produce
from tests.broker.topics import create_topic
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

QUOTA = {"producer_byte_rate": 1_000.0}
TIMEOUT = 60.0

Start = Callable[..., Weir]


@pytest.fixture
def topic() -> str:
    return f"quotas-{uuid4().hex[:8]}"


@pytest.fixture
def make(kafka: KafkaCluster, tmp_path: Path, topic: str) -> Iterator[Start]:
    """`make(name)`: an unstarted gateway, one of several. `sharing=None` makes a gateway without the topic."""
    made: list[Weir] = []

    def one(name: str, **config: Any) -> Weir:
        sections = {
            "quota_admins": ["User:ANONYMOUS"],
            "quotas": {"window": {"samples": 2, "seconds": 1}},
            "sharing": {"topic": f"usage-of-{topic}", "quotas_topic": topic},
            **config,
        }
        gateway = Weir(tmp_path / name, kafka.bootstrap_servers, {k: v for k, v in sections.items() if v is not None})
        made.append(gateway)
        return gateway

    yield one
    for gateway in made:
        if hasattr(gateway, "process") and gateway.process.poll() is None:
            gateway.stop()


def set_quota(gateway: Weir, client_id: str, **values: float | None) -> None:
    with RequestClient(gateway.bootstrap_servers) as client:
        assert alter(client, parts(client_id=client_id), **values)["error_code"] == 0


def throttle_ms(gateway: Weir, topic: str) -> int:
    with RequestClient(gateway.bootstrap_servers, "etl") as client:
        return produce(client, topic)


def kill(gateway: Weir) -> None:
    gateway.process.kill()
    gateway.process.wait()


def table(kafka: KafkaCluster, topic: str) -> dict[str, Any]:
    """Return the topic's table, read by an independent client."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reads", "auto.offset.reset": "earliest"})
    found: dict[str, Any] = {}
    try:
        partition = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=TIMEOUT)
        consumer.assign([partition])
        while consumer.position([partition])[0].offset < end:
            record = consumer.poll(TIMEOUT)
            assert record is not None
            assert record.error() is None
            value = record.value()
            found[record.key().decode()] = None if value is None else json.loads(value)
    finally:
        consumer.close()
    return found


def test_quota_is_shared_by_gateways_and_survives_kills(kafka: KafkaCluster, make: Start, topic: str) -> None:
    produced = create_topic(kafka.bootstrap_servers, f"held-{topic}", partitions=1)
    with make("one") as one, make("two") as two:
        assert throttle_ms(two, produced) == 0
        set_quota(one, "etl", **QUOTA)
        assert described_by(one) == {"client-id=etl": QUOTA}, "the quota applies at its gateway when the change is answered"
        wait_until(lambda: described_by(two) == {"client-id=etl": QUOTA}, "the other gateway has the quota")
        assert throttle_ms(two, produced) > 0
        shown = [row for row in two.usage() if (row["kind"], row["client_id"]) == ("produce", "etl")]
        assert [(row["limit"], row["source"]) for row in shown] == [(1_000.0, "api")]

        set_quota(two, "app", **QUOTA)
        set_quota(two, "etl", producer_byte_rate=2_000.0)
        set_quota(one, "gone", **QUOTA)
        set_quota(one, "gone", producer_byte_rate=None)
        everything = {"client-id=app": QUOTA, "client-id=etl": {"producer_byte_rate": 2_000.0}}
        wait_until(lambda: (described_by(one), described_by(two)) == (everything, everything), "both gateways have both quotas")

        kill(one)
        kill(two)
        two.config_file.with_name("weir.state.json").unlink(missing_ok=True)  # as on a new machine
        one.start()
        two.start()
        assert described_by(two) == everything, "the gateway is not ready before it has the quotas"
        assert described_by(one) == everything
        assert throttle_ms(two, produced) > 0
        held = table(kafka, topic)
        assert held['{"client-id": "etl"}'] == {"version": 1, "quotas": {"producer_byte_rate": 2_000.0}}
        assert held['{"client-id": "gone"}'] is None
        assert one.metric("weir_api_quota_topic_entities") == 2
        assert one.metric("weir_api_quota_topic_connected") == 1


def test_gateways_set_limits_of_one_entity_at_the_same_moment(kafka: KafkaCluster, make: Start, topic: str) -> None:
    rounds = 20
    with make("one") as one, make("two") as two, ThreadPoolExecutor(2) as threads:
        both = Barrier(2)

        def set_everywhere(gateway: Weir, key: str) -> None:
            with RequestClient(gateway.bootstrap_servers) as client:
                for number in range(rounds):
                    both.wait(TIMEOUT)
                    assert alter(client, parts(client_id=f"etl-{number}"), **{key: 1_000.0})["error_code"] == 0

        limits = {one: "producer_byte_rate", two: "consumer_byte_rate"}
        for done in [threads.submit(set_everywhere, gateway, key) for gateway, key in limits.items()]:
            done.result(TIMEOUT)
        everything = {f"client-id=etl-{number}": dict.fromkeys(limits.values(), 1_000.0) for number in range(rounds)}
        wait_until(lambda: (described_by(one), described_by(two)) == (everything, everything), "no answered change is lost")
    last = table(kafka, topic)
    left = {name: value["quotas"] for name, value in last.items() if name != "migration"}
    assert left == {f'{{"client-id": "etl-{number}"}}': dict.fromkeys(limits.values(), 1_000.0) for number in range(rounds)}


def test_first_gateway_fills_topic_that_overrides_files(kafka: KafkaCluster, make: Start, topic: str) -> None:
    for name, rate in (("one", 1_000.0), ("two", 2_000.0)):
        with make(name, sharing=None) as alone:
            set_quota(alone, "etl", producer_byte_rate=rate)
            set_quota(alone, name, producer_byte_rate=rate)
    firsts = {"client-id=etl": QUOTA, "client-id=one": QUOTA}
    with make("one") as one:
        assert described_by(one) == firsts
        with make("two") as two:
            assert described_by(two) == firsts
            set_quota(two, "etl", producer_byte_rate=None)
            set_quota(two, "one", producer_byte_rate=None)
            wait_until(lambda: described_by(one) == {}, "the quota is removed at all gateways")
        kill(one)
        one.start()
        assert described_by(one) == {}, "the quota is not written again"


def test_bad_records_are_skipped_and_deleted_topic_refilled(kafka: KafkaCluster, make: Start, topic: str) -> None:
    with make("one") as one:
        set_quota(one, "etl", **QUOTA)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for key, value in (
            (b"etl", b"1000"),
            (b'{"client-id": "etl"}', b'{"version": 1, "quotas": {"producer_byte_rate": "much"}}'),
            (b'{"client-id": "etl"}', b'{"version": 9}'),
            (b'{"client-id": "etl2"}', b'{"version": 1, "quotas": {"producer_byte_rate": 5.0}}'),
        ):
            producer.produce(topic, value, key)
        assert producer.flush(TIMEOUT) == 0
        both = {"client-id=etl": QUOTA, "client-id=etl2": {"producer_byte_rate": 5.0}}
        wait_until(lambda: described_by(one) == both, "the readable record applies")
        skipped = "weir_api_quota_topic_skipped_total"
        assert (one.metric(skipped, reason="damaged"), one.metric(skipped, reason="version")) == (2, 1)
        assert one.log().count("Weir skips a record") == 2, "one log line for each reason"

        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.delete_topics([topic])[topic].result(TIMEOUT)
        wait_until(lambda: "created again" in one.log(), "the topic exists again")
        wait_until(lambda: "were put into topic" in one.log(), "the topic is filled")
        assert described_by(one) == both
        set_quota(one, "app", **QUOTA)
        assert table(kafka, topic)['{"client-id": "app"}'] == {"version": 1, "quotas": QUOTA}
    restored = {"version": 1, "quotas": QUOTA, "restored": 6}
    assert table(kafka, topic)['{"client-id": "etl"}'] == restored, "six records of the deleted topic were known"


def test_gateway_starts_from_its_copy_without_kafka(make: Start) -> None:
    with make("one") as one, make("two") as two:
        set_quota(two, "etl", **QUOTA)
        wait_until(lambda: described_by(one) == {"client-id=etl": QUOTA}, "the quota arrives at the other gateway")
        copy = one.config_file.with_name("weir.state.json")
        wait_until(lambda: copy.exists() and '"etl"' in copy.read_text(), "the copy is written")
        kill(one)
        one.write_config(one.config | {"upstream": {"bootstrap_servers": [f"127.0.0.1:{free_port()}"]}})
        one.launch()
        wait_until(
            lambda: "1 entity has quotas that were set through the API" in one.log(),
            "the copied quota applies",
        )
        wait_until(lambda: one.log().count('"serving"') == 2, "the gateway serves clients")
        assert one.metric("weir_api_quota_topic_entities") == 1
        assert one.metric("weir_api_quota_topic_connected") == 0
