"""A consumer that replays a topic is in its lane while it is far behind, and a tail reader never is."""

from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, Producer, TopicPartition

from loadtest.testkit.kafka import KafkaCluster
from tests.broker.topics import create_topic
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

RECORDS = 20_000
RECORD_BYTES = 1_000
MAX_LAG = 2_000
RATE = 10**9
TAIL_RECORDS = 50
GROUPS: list[dict[str, Any]] = [
    {"name": "lane", "match": [{"catch_up": True, "max_lag_records": MAX_LAG}], "consumer_byte_rate": RATE},
    {"name": "team", "match": [{"client-id": "*"}], "consumer_byte_rate": RATE},
]


def produce(bootstrap_servers: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "batch.size": 16_384, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, bytes(RECORD_BYTES), key=str(number))
        producer.poll(0)
    assert producer.flush(60.0) == 0


def reader(weir: Weir, topic: str, client_id: str, offset: int) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": weir.bootstrap_servers,
            "client.id": client_id,
            "group.id": client_id,
            "enable.auto.commit": False,
            "max.partition.fetch.bytes": 65_536,
            "queued.min.messages": 1_000,  # so that it fetches no more while the test looks at it
        }
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    return consumer


def read(consumer: Consumer, count: int) -> None:
    left = count

    def done() -> bool:
        nonlocal left
        found = consumer.consume(min(left, 1_000), 0.5)
        assert all(message.error() is None for message in found)
        left -= len(found)
        return left <= 0

    wait_until(done, f"{count} records are read")


def use(weir: Weir, **entity: str) -> int:
    rows = [row for row in weir.usage() if row["kind"] == "fetch"]
    return sum(row["amount_total"] for row in rows if entity.items() <= row.items())


def groups_of(weir: Weir, client_id: str) -> dict[str, str]:
    """Return the group of each connection of a client by the connection's address."""
    rows = weir.api("connections")["rows"]
    return {row["address"]: row["group"] for row in rows if row["client_id"] == client_id}


def test_replay_is_in_its_lane_until_it_has_caught_up(kafka: KafkaCluster, start_weir: Callable[..., Weir]) -> None:
    topic = create_topic(kafka.bootstrap_servers, f"replay-{uuid4().hex[:8]}", 1)
    produce(kafka.bootstrap_servers, topic, RECORDS)
    weir = start_weir(kafka.bootstrap_servers, quotas={"groups": GROUPS})
    with (
        closing(reader(weir, topic, "tail", OFFSET_END)) as tail,
        closing(reader(weir, topic, "replay", OFFSET_BEGINNING)) as replay,
    ):
        tail.poll(0.1)
        wait_until(lambda: use(weir, client_id="tail"), "the tail reader waits at the end")
        read(replay, 1_000)
        (fetching,) = [address for address, group in groups_of(weir, "replay").items() if group == "lane"]
        read(replay, RECORDS - 1_000)
        assert groups_of(weir, "replay")[fetching] == "team"
        behind = use(weir, group="lane") / (use(weir, client_id="replay") / RECORDS)
        # The first response is charged to the client's usual group, and each batch has 16 records.
        assert behind == pytest.approx(RECORDS - MAX_LAG / 10, abs=RECORDS / 100)
        produce(kafka.bootstrap_servers, topic, TAIL_RECORDS)
        lane = use(weir, group="lane")
        read(replay, TAIL_RECORDS)
        read(tail, TAIL_RECORDS)
        assert use(weir, group="lane") == lane
