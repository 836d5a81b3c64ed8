"""Two workers before a real broker: one is killed under load, and one admin port shows both."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from types import TracebackType
from typing import Self
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from loadtest.scenarios.evenness.logs import log_bytes
from loadtest.testkit.fleet import CLIENT_ID, Load
from loadtest.testkit.kafka import KafkaCluster
from tests.broker.rates import wait_for_rate
from tests.broker.records import PARTITIONS
from tests.broker.request_client import RequestClient
from tests.broker.test_quota_api import alter, describe, parts
from tests.broker.topics import create_topic
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

PRODUCERS = 12
"""Most have one connection when the tests look: one of two workers gets none of 12 in one of 2 000 tries."""

RATE = 50
"""Records per second of each producer."""

QUOTA = 2_000_000


class Producing:
    """An idempotent producer of numbered records with unlimited retries."""

    def __init__(self, gateway: Weir, topic: str, number: int) -> None:
        self.number = number
        self.acknowledged: list[str] = []
        self.failed: list[KafkaError] = []
        self._topic = topic
        self._end = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": gateway.bootstrap_servers, "client.id": f"producer-{number}", "enable.idempotence": True}
        )
        self._thread = threading.Thread(target=self._send, daemon=True)

    def _send(self) -> None:
        sent = 0
        while not self._end.is_set():
            value = f"{self.number}-{sent}"
            self._producer.produce(self._topic, value, partition=sent % PARTITIONS, on_delivery=self._delivered)
            self._producer.poll(0)
            sent += 1
            time.sleep(1 / RATE)
        self._producer.flush(60)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append(message.value().decode())
        else:
            self.failed.append(error)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Stop producing. Records in flight are acknowledged or fail before this returns."""
        self._end.set()
        self._thread.join()


def consume(gateway: Weir, topic: str, count: int) -> list[str]:
    """Return the records of a topic, which must be `count`."""
    consumer = Consumer({"bootstrap.servers": gateway.bootstrap_servers, "group.id": topic, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    values: list[str] = []
    ended = 0
    deadline = time.monotonic() + 60
    while (len(values) < count or ended < PARTITIONS) and time.monotonic() < deadline:
        for message in consumer.consume(1_000, timeout=0.2):
            if message.error() is None:
                values.append(message.value().decode())
            else:
                ended += 1
    consumer.close()
    return values


def written(cluster: KafkaCluster, topic: str) -> int:
    """Return the bytes in the log of a topic with one partition."""
    return log_bytes(cluster.brokers[0].directory / "data" / f"{topic}-0")


def each_has_clients(weir: Weir) -> None:
    """Open connections until each worker has clients: the kernel spreads them by chance.

    A worker that is slow to answer is missing in one answer. On a busy machine, an answer takes seconds.
    """
    with ExitStack() as opened:

        def look() -> bool:
            if min(weir.metric("weir_worker_connections", worker=worker) for worker in "01") > 0:
                return True
            opened.enter_context(socket.create_connection(("127.0.0.1", weir.ports[0])))
            return False

        wait_until(look, "each worker has clients", timeout=200)


@pytest.fixture(scope="module")
def two_workers(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    quotas = {"entities": [{"client-id": CLIENT_ID, "producer_byte_rate": QUOTA}], "window": {"samples": 2, "seconds": 1}}
    config = {
        "workers": 2,
        "quotas": quotas,
        "quota_admins": ["User:ANONYMOUS"],
        "sharing": {"topic": "usage-of-workers", "quotas_topic": "quotas-of-workers"},
    }
    with Weir(tmp_path_factory.mktemp("workers"), kafka.bootstrap_servers, config) as weir:
        yield weir


def test_killed_worker_leaves_other_clients_connected(two_workers: Weir) -> None:
    weir = two_workers
    topic = create_topic(weir.bootstrap_servers, f"workers-killed-{uuid4().hex[:8]}")
    with ExitStack() as running:
        producers = [running.enter_context(Producing(weir, topic, number)) for number in range(PRODUCERS)]

        def each_has_more(records: int, what: str) -> None:
            goals = [len(producer.acknowledged) + records for producer in producers]
            wait_until(
                lambda: all(len(producer.acknowledged) >= goal for producer, goal in zip(producers, goals, strict=True)),
                what,
                timeout=60,
            )

        each_has_more(20, "all producers are at work")
        each_has_clients(weir)
        killed, other = (worker["pid"] for worker in weir.workers())
        restarts = weir.metric("weir_worker_restarts_total", worker="0")
        kept = wait_until(lambda: weir.metric("weir_worker_connections", worker="1"), "the other worker's connections")
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: weir.workers()[0]["pid"] not in {killed, None}, "a replacement process")
        each_has_more(50, "all producers go on")
        assert weir.not_ready() == ""
        assert weir.workers()[1]["pid"] == other
        wait_until(
            lambda: weir.metric("weir_worker_connections", worker="1") >= kept, "the other worker's connections are still open"
        )
        wait_until(lambda: weir.metric("weir_worker_up") == 2, "both answer")
        assert weir.metric("weir_worker_restarts_total", worker="0") == restarts + 1
        assert weir.metric("weir_worker_restarts_total", worker="1") == 0
    assert [producer.failed for producer in producers] == [[]] * PRODUCERS
    acknowledged = sorted(value for producer in producers for value in producer.acknowledged)
    assert sorted(consume(weir, topic, len(acknowledged))) == acknowledged


def test_admin_port_shows_all_workers(two_workers: Weir) -> None:
    weir = two_workers
    topic = create_topic(weir.bootstrap_servers, f"workers-shown-{uuid4().hex[:8]}")
    with ExitStack() as running:
        for number in range(PRODUCERS):
            running.enter_context(Producing(weir, topic, 100 + number))
        names = {f"producer-{100 + number}" for number in range(PRODUCERS)}
        wait_until(lambda: names <= {row["client_id"] for row in weir.usage()}, "all producers are shown")
        wait_until(lambda: weir.metric("weir_connections") >= PRODUCERS, "each producer has a connection")
        each_has_clients(weir)
        with_rate = wait_until(
            lambda: [row for row in weir.usage() if row["client_id"] in names and row["rate"] > 0], "the use of all producers"
        )
        for row in with_rate:
            counted = partial(weir.metric, "weir_quota_bytes_total", kind="produce", client_id=row["client_id"])
            wait_until(lambda: counted() >= row["amount_total"], "the metric has caught up")  # noqa: B023
    assert weir.api("config")["config"]["workers"] == 2
    assert weir.api("quotas")["shared"] is True


def test_workers_share_one_quota(kafka: KafkaCluster, two_workers: Weir) -> None:
    weir = two_workers
    wait_until(lambda: weir.metric("weir_sharing_members") == 2, "both workers share")
    topic = create_topic(weir.bootstrap_servers, f"workers-shared-{uuid4().hex[:8]}", partitions=1)
    with closing(Load([weir], topic)) as load:
        load.put([PRODUCERS])
        each_has_clients(weir)
        begin = written(kafka, topic)
        wait_until(lambda: written(kafka, topic) - begin > 3 * QUOTA, "the burst has ended", timeout=60)
        wait_for_rate(lambda: written(kafka, topic), QUOTA)
        assert load.trouble() == 0
        so_far = written(kafka, topic)
        (row,) = (row for row in weir.usage() if row["client_id"] == CLIENT_ID and row["kind"] == "produce")
        assert row["limit"] == QUOTA
        assert row["amount_total"] >= so_far


def test_quota_set_through_one_worker_applies_at_all(two_workers: Weir) -> None:
    weir = two_workers
    quota = {"producer_byte_rate": 1_000.0}
    with ExitStack() as open_clients:
        clients = [open_clients.enter_context(RequestClient(weir.bootstrap_servers)) for _ in range(2 * PRODUCERS)]
        each_has_clients(weir)
        assert alter(clients[0], parts(client_id="set"), **quota)["error_code"] == 0
        wait_until(
            lambda: all(describe(client).get("client-id=set") == quota for client in clients), "every worker knows the quota"
        )
    killed = weir.workers()[1]["pid"]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: weir.workers()[1]["pid"] not in {killed, None}, "a replacement process")
    wait_until(lambda: weir.workers()[1]["not_ready"] is None, "the gateway is ready")
    with ExitStack() as open_clients:
        clients = [open_clients.enter_context(RequestClient(weir.bootstrap_servers)) for _ in range(2 * PRODUCERS)]
        assert all(describe(client).get("client-id=set") == quota for client in clients)


def test_maximum_of_connections_holds_for_both_workers(two_workers: Weir) -> None:
    weir = two_workers
    weir.apply(quotas=weir.config["quotas"] | {"entities": [{"user": "ANONYMOUS", "max_connections": 4}]})
    wait_until(lambda: weir.metric("weir_connections") == 0, "no client of another test is left")

    def exchanged() -> float:
        return weir.metric("weir_sharing_messages_total")

    def refused() -> float:
        return weir.metric("weir_connections_rejected_total", reason="max_per_user")

    before = refused()

    try:
        with ExitStack() as opened:
            for number in range(4):
                opened.enter_context(RequestClient(weir.bootstrap_servers))
                wait_until(lambda: weir.metric("weir_user_connections", user="ANONYMOUS") == number + 1, "it is counted")  # noqa: B023
                heard = exchanged() + 12  # each worker reads three messages of each: the last two began after the connect
                wait_until(lambda: exchanged() >= heard, "both workers know of it")  # noqa: B023
            for _ in range(12):
                opened.enter_context(RequestClient(weir.bootstrap_servers))
            wait_until(lambda: refused() == before + 12, "twelve are refused")
            wait_until(lambda: weir.metric("weir_connections") == 4, "the refused ones are closed")
            rows = weir.api("connections?user=ANONYMOUS&sort=since")["rows"]
            assert len(rows) == weir.metric("weir_user_connections", user="ANONYMOUS") == 4
    finally:
        weir.apply(quotas=weir.config["quotas"])
