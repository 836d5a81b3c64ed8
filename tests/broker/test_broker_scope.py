"""`quotas.scope: broker` beside the brokers' own quotas, with the same figure and the same algorithm."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka.admin import AdminClient

from loadtest.testkit.kafka import KafkaCluster
from protocol.api_keys import ApiKey
from tests.broker.request_client import RequestClient
from tests.broker.test_moving_quotas import alter, everywhere
from tests.broker.topics import create_topic_at
from tests.weir_process import Weir

pytestmark = pytest.mark.broker

RATE = 100
RECORD_BYTES = {0: 1_500, 1: 2_400, 2: 3_300}
"""By broker. Each record is more than the ten seconds of the quota that a client may use at once. It comes in one chunk, as a
window begins with the first chunk."""
TIMEOUT = 60.0


@pytest.fixture
def topics(kafka3: KafkaCluster) -> Iterator[list[str]]:
    """A topic for each broker, with its only partition there."""
    servers = kafka3.bootstrap_servers
    names = [create_topic_at(servers, f"scope-{uuid4().hex[:8]}-{node.id}", node.id) for node in kafka3.brokers]
    yield names
    admin = AdminClient({"bootstrap.servers": servers})
    for deleted in admin.delete_topics(names).values():
        deleted.result(TIMEOUT)


@pytest.fixture
def limited(kafka3: KafkaCluster) -> Iterator[str]:
    """A client-id that the brokers limit. Brokers remember the use of each name for a while, so each run has a new name."""
    name = f"kafka-{uuid4().hex}"
    entity = (("client-id", name),)
    alter(kafka3.bootstrap_servers, {entity: {"producer_byte_rate": float(RATE)}})
    everywhere(kafka3, {entity: {"producer_byte_rate": float(RATE)}})
    yield name
    alter(kafka3.bootstrap_servers, {entity: {"producer_byte_rate": None}})
    everywhere(kafka3, {})


def throttle_time_ms(address: str, client_id: str, topic: str, size: int) -> int:
    """The throttle time of the first Produce request of a client at a broker."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    builder.append(0, 1_700_000_000_000, None, bytes(size), [])
    partition = {"index": 0, "records": bytes(builder.build())}
    topic_data = [{"name": topic, "partition_data": [partition]}]
    with RequestClient(address, client_id) as client:
        values = {"transactional_id": None, "acks": 1, "timeout_ms": 30_000, "topic_data": topic_data}
        answer = client.ask(ApiKey.PRODUCE, 9, values)
    assert [each["error_code"] for each in answer["responses"][0]["partition_responses"]] == [0]
    return int(answer["throttle_time_ms"])


def test_each_broker_throttles_as_weir_does(
    kafka3: KafkaCluster, topics: list[str], limited: str, start_weir: Callable[..., Weir]
) -> None:
    by_weir = limited.replace("kafka", "weir-")  # a name of the same length, so that requests have the same size
    entities = [{"client-id": by_weir, "producer_byte_rate": RATE}]
    gateway = start_weir(kafka3.bootstrap_servers, quotas={"scope": "broker", "algorithm": "window", "entities": entities})
    of_brokers = {}
    for node, topic in zip(kafka3.brokers, topics, strict=True):
        at_weir = f"127.0.0.1:{gateway.ports[1 + node.id]}"
        of_brokers[str(node.id)] = throttled = throttle_time_ms(node.address, limited, topic, RECORD_BYTES[node.id])
        # Weir's answer has the rest of the throttle time, as the request was charged before the broker had it.
        assert 0 < throttle_time_ms(at_weir, by_weir, topic, RECORD_BYTES[node.id]) <= throttled
    rows = [row for row in gateway.usage() if (row["kind"], row["client_id"]) == ("produce", by_weir)]
    assert {row["broker"]: round(row["throttle_seconds_total"] * 1000) for row in rows} == of_brokers
    assert {row["limit"] for row in rows} == {RATE}
    found = gateway.metric("weir_quota_bytes_total", kind="produce", user="", client_id=by_weir, ip="", broker="2")
    assert found > RECORD_BYTES[2]
