"""A restart gives no free burst: recent use is remembered, also after a kill."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka.record.default_records import DefaultRecordBatchBuilder

from gateway import clock
from loadtest.testkit.kafka import KafkaCluster
from protocol.api_keys import ApiKey
from tests.broker.request_client import RequestClient
from tests.broker.topics import create_topic
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

LIMIT = 1_000
WINDOW = {"samples": 301, "seconds": 1}
BURST = LIMIT * 300
RECORD = 20_000
LARGE = 30_000
"""A record so large that its throttle time exceeds the time of a restart, on a slow machine too."""


def produce(gateway: Weir, topic: str, size: int = RECORD) -> int:
    """Produce one record over a new, unmuted connection and return the throttle time in ms."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    builder.append(0, 1_700_000_000_000, None, bytes(size), [])
    data = [{"name": topic, "partition_data": [{"index": 0, "records": bytes(builder.build())}]}]
    with RequestClient(gateway.bootstrap_servers, "etl") as client:
        answer = client.ask(ApiKey.PRODUCE, 9, {"acks": -1, "timeout_ms": 5000, "topic_data": data})
    assert [part["error_code"] for each in answer["responses"] for part in each["partition_responses"]] == [0]
    throttle: int = answer["throttle_time_ms"]
    return throttle


def bytes_in_the_log(cluster: KafkaCluster, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "ends"})
    try:
        return LARGE * int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30.0)[1])
    finally:
        consumer.close()


def tokens(gateway: Weir) -> float:
    """The balance of client-id etl; without a bucket, a whole burst."""
    found = [row["tokens"] for row in gateway.usage() if (row["kind"], row["client_id"]) == ("produce", "etl")]
    return float(found[0]) if found else float(BURST)


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_restart_and_kill_give_no_second_burst(kafka: KafkaCluster, start_weir: Callable[..., Weir], algorithm: str) -> None:
    topic = create_topic(kafka.bootstrap_servers, f"no-second-burst-{uuid4().hex[:8]}", partitions=1)
    entities = [{"client-id": "etl", "producer_byte_rate": LIMIT}]
    gateway = start_weir(
        kafka.bootstrap_servers,
        quotas={"algorithm": algorithm, "window": WINDOW, "entities": entities},
        state={"usage_interval_ms": 200},
    )
    began = clock.monotonic()
    while produce(gateway, topic, LARGE) == 0:
        pass
    assert bytes_in_the_log(kafka, topic) >= BURST

    gateway.stop()
    gateway.start()
    assert produce(gateway, topic, LARGE) > 0, "the same as without a restart"

    saved = gateway.metric("weir_usage_saves_total", result="success")
    wait_until(lambda: gateway.metric("weir_usage_saves_total", result="success") >= saved + 2, "recent use is saved")
    gateway.process.kill()
    gateway.process.wait()
    gateway.start()
    assert produce(gateway, topic, LARGE) > 0, "the same as without a kill"

    gateway.stop()
    gateway.config_file.with_name("weir.state.usage.jsonl").write_text("not what Weir has written")
    gateway.start()
    allowed = BURST + LIMIT * (clock.monotonic() - began) + 3 * LARGE
    assert bytes_in_the_log(kafka, topic) <= allowed
    assert produce(gateway, topic, LARGE) == 0, "an unreadable file is ignored, and the gateway starts"
    assert "recent use can't be read" in gateway.log()


def test_shared_use_survives_restarts_and_is_charged_once(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = create_topic(kafka.bootstrap_servers, f"shared-over-restarts-{uuid4().hex[:8]}", partitions=1)
    config = {
        "quotas": {"window": WINDOW, "entities": [{"client-id": "etl", "producer_byte_rate": LIMIT}]},
        "sharing": {"topic": f"usage-{uuid4().hex[:8]}", "quotas_topic": f"quotas-{uuid4().hex[:8]}"},
        "state": {"usage_interval_ms": 200},
    }

    with (
        Weir(tmp_path / "one", kafka.bootstrap_servers, config) as one,
        Weir(tmp_path / "two", kafka.bootstrap_servers, config) as two,
    ):
        wait_until(
            lambda: one.metric("weir_sharing_members") == two.metric("weir_sharing_members") == 2,
            "the gateways know each other",
        )
        began = clock.monotonic()
        for _ in range(8):
            produce(one, topic)
        used = 8 * RECORD
        wait_until(
            lambda: tokens(two) <= BURST - used + LIMIT * (clock.monotonic() - began), "the other gateway has received the use"
        )
        saved = two.metric("weir_usage_saves_total", result="success")
        wait_until(
            lambda: two.metric("weir_usage_saves_total", result="success") >= saved + 2, "the other gateway has saved the use"
        )
        two.process.kill()
        two.process.wait()
        produce(one, topic)  # while the gateway is down
        two.start()
        wait_until(lambda: two.metric("weir_sharing_members") == 2, "the gateway is back")
        produce(one, topic)
        used += 2 * RECORD
        wait_until(lambda: tokens(two) <= BURST - used + LIMIT * (clock.monotonic() - began), "the use is not forgotten")
        assert tokens(two) >= BURST - used - RECORD, "the use is not counted twice"
        # Presumed use and the time between two measurements may differ.
        wait_until(lambda: abs(tokens(one) - tokens(two)) <= 2 * RECORD, "both gateways have the same balance")
