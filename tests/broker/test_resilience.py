"""A broker dies, freezes and moves under load: no record is lost or doubled, and no connection is left open."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from loadtest.testkit.kafka import SHORT_SESSIONS, KafkaCluster, VerifiableProducer
from tests.broker.records import PARTITIONS
from tests.broker.topics import create_topic
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

RATE = 500
"""Records per second."""
FREEZE_SECONDS = 20
MEBIBYTE = 1024 * 1024


class Producing:
    """Kafka's VerifiableProducer, and the records that were acknowledged to it."""

    def __init__(self, directory: Path, gateway: Weir, topic: str) -> None:
        self.acknowledged: list[tuple[int, int, str]] = []
        self.end = "the producer runs"
        self._producer = VerifiableProducer(
            directory,
            gateway.bootstrap_servers,
            topic,
            self._acknowledge,
            per_second=RATE,
            properties={"delivery.timeout.ms": "120000"},
        )

    @property
    def errors(self) -> list[str]:
        """The lines of the records that failed."""
        return self._producer.errors

    def _acknowledge(self, partition: int, offset: int, value: str) -> None:
        self.acknowledged.append((partition, offset, value))

    def wait_for(self, more: int) -> None:
        """Return when `more` further records are acknowledged."""
        goal = len(self.acknowledged) + more
        wait_until(lambda: len(self.acknowledged) >= goal, f"{more} more records are acknowledged", timeout=120)

    def wait_for_each_partition(self) -> None:
        """Return when each partition has a record.

        Kafka accepts any first sequence number of a producer in a partition (ProducerAppendInfo.checkSequence). If a broker
        refuses the very first batch and appends the one behind it, Kafka never accepts the first one.
        """
        wait_until(lambda: len({partition for partition, _, _ in self.acknowledged}) == PARTITIONS, "each partition is in use")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Stop producing. Records in flight are acknowledged or fail before this returns, or are given up after 60 s."""
        begun = time.monotonic()
        code = self._producer.stop(timeout=60)
        self.end = f"the producer ended with exit code {code}, {time.monotonic() - begun:.0f} s after SIGTERM"

    def explain(self, cluster: KafkaCluster, topic: str, gateway: Weir) -> str:
        """Return what is known of records that are missing: the producer's end and warnings, the partitions, Weir's log."""
        partitions = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(topic).topics[topic].partitions
        states = [f"partition {each.id}: leader {each.leader}, in sync {each.isrs}" for each in partitions.values()]
        return "\n".join([self.end, *states, *self._producer.warnings[-40:], gateway.log()[-4000:]])


class Consuming:
    """A consumer of the whole topic from its beginning, with its own position."""

    def __init__(self, gateway: Weir, topic: str) -> None:
        self.arrived: list[tuple[int, int, str]] = []
        self._consumer = Consumer({"bootstrap.servers": gateway.bootstrap_servers, "group.id": topic})
        self._consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._end.is_set():
            for message in self._consumer.consume(1_000, timeout=0.2):
                if message.error() is None:
                    self.arrived.append((message.partition(), message.offset(), message.value().decode()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()
        self._consumer.close()


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("kafka"), 1, SHORT_SESSIONS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def own_kafka3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("kafka3"), 3, SHORT_SESSIONS) as cluster:
        yield cluster


def kill_and_restart(cluster: KafkaCluster) -> None:
    cluster.brokers[0].kill()
    cluster.brokers[0].start()


def freeze(cluster: KafkaCluster) -> None:
    cluster.brokers[0].freeze()
    time.sleep(FREEZE_SECONDS)  # the length of the freeze is under test
    cluster.brokers[0].thaw()


def move(cluster: KafkaCluster) -> None:
    cluster.brokers[0].move()
    cluster.wait_until_ready()


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("brokers", "disturb"),
    [(1, kill_and_restart), (1, freeze), (3, kill_and_restart), (3, freeze), (3, move)],
    ids=["kill-1", "freeze-1", "kill-3", "freeze-3", "move-3"],
)
def test_disturbed_brokers_lose_and_double_nothing(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    start_weir: Callable[..., Weir],
    brokers: int,
    disturb: Callable[[KafkaCluster], None],
) -> None:
    cluster: KafkaCluster = request.getfixturevalue("own_kafka" if brokers == 1 else "own_kafka3")
    topic = create_topic(cluster.bootstrap_servers, f"{disturb.__name__}-{uuid4().hex[:8]}", replicas=brokers)
    gateway = start_weir(cluster.bootstrap_servers)
    sockets, memory = len(gateway.sockets()), gateway.resident_bytes()

    with Consuming(gateway, topic) as consuming:
        with Producing(tmp_path, gateway, topic) as producing:
            producing.wait_for(2 * RATE)
            producing.wait_for_each_partition()
            disturb(cluster)
            producing.wait_for(2 * RATE)
            wait_until(
                lambda: gateway.metric("weir_connections") == gateway.client_sockets() > 0,
                "weir_connections equals the kernel's count",
            )
        sent = producing.acknowledged
        wait_until(lambda: len(consuming.arrived) >= len(sent), f"{len(sent)} records arrive", timeout=90)
    assert producing.errors == []
    assert sorted(consuming.arrived) == sorted(sent)
    values = sorted(int(value) for _, _, value in consuming.arrived)
    assert values == list(range(len(sent))), producing.explain(cluster, topic, gateway)

    wait_until(lambda: gateway.metric("weir_connections") == gateway.client_sockets() == 0, "no client is left")
    # The cluster lookup had one connection before and may have one to each broker now.
    wait_until(lambda: len(gateway.sockets()) < sockets + brokers, f"{sockets} sockets as before")
    assert gateway.resident_bytes() < memory + 64 * MEBIBYTE


def test_frozen_broker_leaves_no_open_connection(own_kafka: KafkaCluster, start_weir: Callable[..., Weir]) -> None:
    gateway = start_weir(own_kafka.bootstrap_servers)
    sockets = len(gateway.sockets())
    own_kafka.brokers[0].freeze()
    try:
        for _ in range(20):
            consumer = Consumer(
                {"bootstrap.servers": gateway.bootstrap_servers, "group.id": "frozen", "socket.timeout.ms": 1_000}
            )
            consumer.subscribe(["anything"])
            consumer.poll(0.05)
            consumer.close()
        wait_until(lambda: gateway.metric("weir_connections") == gateway.client_sockets() == 0, "no client is left")
        wait_until(lambda: len(gateway.sockets()) <= sockets, f"{sockets} sockets as before")
    finally:
        own_kafka.brokers[0].thaw()
