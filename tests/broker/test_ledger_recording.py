"""The ledger of a real gateway under load: its events after a kill, without enforcement, and in the topic."""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from gateway.events import ConfigApplied, Event, ThrottleEvent, TopicRejected, from_line
from gateway.reports.job.topic import fetch_topic
from loadtest.testkit.kafka import KafkaCluster
from tests.broker.topics import create_topic
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

CLIENT = "etl"
ENTITY = {"client-id": CLIENT, "producer_byte_rate": 100_000}
WINDOW = {"samples": 2, "seconds": 1}


def produce(gateway: Weir, topic: str, count: int) -> None:
    """Send records of 10 kB, each in its own request, and wait until all are acknowledged."""
    producer = Producer(
        {"bootstrap.servers": gateway.bootstrap_servers, "client.id": CLIENT, "linger.ms": 0, "batch.num.messages": 1}
    )
    for _ in range(count):
        producer.produce(topic, bytes(10_000))
    assert producer.flush(60.0) == 0


def written(path: Path) -> list[Event]:
    """Return the events of all finished files. Raises InvalidEventError or zlib.error for a damaged file."""
    return [
        from_line(line)
        for file in sorted(path.rglob("weir-*.jsonl.gz"))
        for line in gzip.decompress(file.read_bytes()).splitlines()
    ]


def flushed(path: Path) -> list[Event]:
    """Return the complete events of all unfinished files. Each flush appends a gzip member."""
    found: list[Event] = []
    for part in path.rglob("_*.part"):
        data = part.read_bytes()
        while data:
            decoder = zlib.decompressobj(wbits=31)
            member = decoder.decompress(data)
            if not decoder.eof:
                break  # the gateway is writing the file
            found += map(from_line, member.splitlines())
            data = decoder.unused_data
    return found


def gateway_with_ledger(
    start: Callable[..., Weir], kafka: KafkaCluster, path: Path, topic: str | None = None, **quotas: Any
) -> Weir:
    ledger = {"path": str(path), "gateway": "weir-1", "flush_seconds": 1, "rotate_seconds": 3600}
    return start(
        kafka.bootstrap_servers,
        quotas={"entities": [ENTITY], "window": WINDOW, **quotas},
        ledger=ledger if topic is None else ledger | {"topic": topic},
    )


def test_killed_gateway_leaves_flushed_events(kafka: KafkaCluster, start_weir: Callable[..., Weir], tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    topic = create_topic(kafka.bootstrap_servers, f"ledger-{tmp_path.name}", replicas=1)
    gateway = gateway_with_ledger(start_weir, kafka, path)
    produce(gateway, topic, 25)
    throttled = gateway.metric("weir_throttled_requests_total", client_id=CLIENT, kind="produce")
    assert throttled > 0
    # A flush that starts after the last decision writes all decisions to the disk.
    gateway.write_config(gateway.config | {"connections": {"drain_seconds": 5}})
    wait_until(lambda: any(isinstance(event, ConfigApplied) for event in flushed(path)), "the reload is in the file")
    gateway.process.kill()
    gateway.process.wait()
    assert written(path) == []
    gateway.start()
    events = wait_until(lambda: written(path), "the unfinished file is renamed")
    throttles = [event for event in events if isinstance(event, ThrottleEvent)]
    assert sum(event.count for event in throttles) == throttled
    assert {(event.kind, event.client_id, event.api, event.address) for event in throttles} == {
        ("produce", CLIENT, "Produce", "127.0.0.1")
    }
    assert {event.broker for event in throttles} == {kafka.brokers[0].id}
    assert sum(sum(event.throttle_slots.values()) for event in throttles) == throttled
    (applied,) = (event for event in events if isinstance(event, ConfigApplied))
    assert (applied.result, applied.config_version) == ("success", "2")
    assert gateway.metric("weir_ledger_dropped_total") == 0


def test_unenforced_throttles_are_recorded(kafka: KafkaCluster, start_weir: Callable[..., Weir], tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    topic = create_topic(kafka.bootstrap_servers, f"unenforced-{tmp_path.name}", replicas=1)
    gateway = gateway_with_ledger(start_weir, kafka, path, enforce=False)
    produce(gateway, topic, 25)
    noted = gateway.metric("weir_throttled_requests_total", client_id=CLIENT, kind="produce")
    assert noted > 0
    gateway.stop()
    throttles = [event for event in written(path) if isinstance(event, ThrottleEvent)]
    assert sum(event.count for event in throttles) == noted
    assert {event.enforced for event in throttles} == {False}
    gateway.start()  # the fixture stops it


def test_ledger_topic_holds_the_files_events(kafka: KafkaCluster, start_weir: Callable[..., Weir], tmp_path: Path) -> None:
    """`weir report --kafka` fetches the same events, including the last ones before the gateway stops.

    Repeated lines, which the gateway sends again without a confirmation, are fetched once.
    """
    path, fetched, ledger_topic = tmp_path / "ledger", tmp_path / "fetched", f"throttles-{tmp_path.name}"
    topic = create_topic(kafka.bootstrap_servers, f"told-{tmp_path.name}", replicas=1)
    gateway = gateway_with_ledger(start_weir, kafka, path, ledger_topic)
    produce(gateway, topic, 25)
    assert gateway.metric("weir_throttled_requests_total", client_id=CLIENT, kind="produce") > 0
    gateway.stop()
    send_again(kafka.bootstrap_servers, ledger_topic)
    assert fetch_topic(kafka.bootstrap_servers, ledger_topic, fetched, None, lambda message: None) > 0
    assert lines(fetched, "topic-*") == lines(path, "weir-*") != []
    resource = ConfigResource(ResourceType.TOPIC, ledger_topic)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    configs = admin.describe_configs([resource])[resource].result()
    assert (configs["cleanup.policy"].value, configs["retention.ms"].value) == ("delete", str(30 * 86_400_000))
    gateway.start()  # the fixture stops it


def test_topic_gets_lines_of_a_gateway_without_brokers(
    kafka: KafkaCluster, start_weir: Callable[..., Weir], tmp_path: Path
) -> None:
    """The gateway ends before it reaches a broker. The next start sends its lines, and then its own."""
    path, fetched, ledger_topic = tmp_path / "ledger", tmp_path / "fetched", f"late-{tmp_path.name}"
    keys = {"path": str(path), "gateway": "weir-1", "topic": ledger_topic, "flush_seconds": 1, "rotate_seconds": 3600}
    gateway = start_weir("127.0.0.1:1", ledger=keys, wait="/livez")
    gateway.apply(connections={"drain_seconds": 1})  # an event
    gateway.stop()
    gateway = start_weir(kafka.bootstrap_servers, ledger=keys)
    wait_until(lambda: not list(path.glob("_unsent-*")), "the lines of the first process are sent")
    gateway.apply(connections={"drain_seconds": 1})
    gateway.stop()
    assert fetch_topic(kafka.bootstrap_servers, ledger_topic, fetched, None, lambda message: None) == 2
    assert lines(fetched, "topic-*") == lines(path, "weir-*")


def test_last_rejections_are_recorded_at_exit(kafka: KafkaCluster, start_weir: Callable[..., Weir], tmp_path: Path) -> None:
    """Rejections are folded for ten seconds, and the gateway stops earlier."""
    path = tmp_path / "ledger"
    topic = create_topic(kafka.bootstrap_servers, f"rejected-{tmp_path.name}", replicas=1)
    gateway = gateway_with_ledger(start_weir, kafka, path, topics={"total.bytes.in.per.sec.threshold": 10_000})
    producer = Producer({"bootstrap.servers": gateway.bootstrap_servers, "linger.ms": 0, "batch.num.messages": 1})

    def rejected() -> float:
        producer.produce(topic, bytes(10_000), partition=0)
        return gateway.metric("weir_topic_throttled_bytes_total", topic=topic)

    least = wait_until(rejected, "the topic is over its share")
    producer.purge()
    gateway.stop()
    rejections = [event for event in written(path) if isinstance(event, TopicRejected)]
    assert {(event.topic, event.reason) for event in rejections} == {(topic, "quota")}
    assert sum(event.amount for event in rejections) >= least
    gateway.start()  # the fixture stops it


def send_again(bootstrap_servers: str, topic: str) -> None:
    """Append all records of a topic with one partition again, as a gateway without confirmation does."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 30.0)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for record in consumer.consume(end, 30.0):
        producer.produce(topic, record.value(), record.key(), partition=0, headers=record.headers())
    assert producer.flush(30.0) == 0
    consumer.close()


def lines(path: Path, files: str) -> list[bytes]:
    """Return the lines of all finished files, sorted."""
    return sorted(line for file in path.rglob(f"{files}.jsonl.gz") for line in gzip.decompress(file.read_bytes()).splitlines())
