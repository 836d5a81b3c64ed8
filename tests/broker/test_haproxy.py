"""A real client and a real broker, with HAProxy in front of the gateway, as docs/how-to/haproxy.md describes it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from gateway.events import ThrottleEvent
from loadtest.testkit.certificates import Authority
from loadtest.testkit.gateway_process import HOST
from loadtest.testkit.kafka import KafkaCluster
from tests.broker.test_ledger_recording import flushed
from tests.broker.topics import create_topic
from tests.haproxy_process import BALANCER, Frontend, haproxy
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

FRONT = "127.0.0.8"
"""HAProxy listens here, on the gateway's own port numbers."""

RECORDS = 20


@pytest.fixture
def gateway(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Weir]:
    """HAProxy ends TLS, and its header says so."""
    config = {
        "quotas": {"entities": [{"client-id": "hasty", "producer_byte_rate": 10_000}], "window": {"samples": 2, "seconds": 1}},
        "ledger": {"path": str(tmp_path / "ledger"), "flush_seconds": 1},
    }
    listener = {"advertised_host": FRONT, "proxy_protocol": {"mode": "required", "trusted": [BALANCER]}}
    files = Authority(tmp_path).issue("haproxy", [FRONT])
    with Weir(tmp_path / "weir", kafka.bootstrap_servers, config, listener) as running:
        ports = f"{running.ports[0]}-{running.ports[-1]}"
        server = Frontend(f"{FRONT}:{ports} ssl crt {files.both}", f"{HOST} send-proxy-v2-ssl")
        with haproxy(tmp_path / "haproxy", {"kafka": server}):
            yield running


def test_client_works_and_its_throttles_have_its_address(gateway: Weir, kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = create_topic(kafka.bootstrap_servers, "behind-haproxy")
    common = {
        "bootstrap.servers": f"{FRONT}:{gateway.ports[0]}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "client.id": "hasty",
    }
    producer = Producer({**common, "linger.ms": 0, "batch.num.messages": 1})
    for _ in range(RECORDS):
        producer.produce(topic, bytes(1_000))
    assert producer.flush(60.0) == 0
    consumer = Consumer({**common, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        assert all(consumer.poll(60.0).error() is None for _ in range(RECORDS))
    finally:
        consumer.close()
    throttles = wait_until(
        lambda: [event for event in flushed(tmp_path / "ledger") if isinstance(event, ThrottleEvent)], "a throttle is written"
    )
    assert {event.address for event in throttles} == {"127.0.0.1"}
    assert gateway.metric("weir_proxy_headers_total", header="v2") > 0
    assert gateway.metric("weir_connections_rejected_total", reason="proxy_header_missing") == 0
