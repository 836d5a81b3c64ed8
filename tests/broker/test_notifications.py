"""A throttled client before two workers: one episode for its tenant, and the same quota on every page."""

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from gateway.commands import main
from loadtest.testkit.kafka import KafkaCluster
from tests.broker.topics import create_topic
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

CLIENT = "etl"
QUOTA = 100_000
PRODUCERS = 12
"""Each has two connections: the probability that one of two workers gets none of 24 is one in ten million."""


class Receiver:
    """A webhook: an HTTP server that keeps the bodies of its requests."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/s3cret-path"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def events(self) -> list[str]:
        return [body["event"] for body in self.bodies]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(scope="module")
def weir(kafka: KafkaCluster, receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    directory = tmp_path_factory.mktemp("notified")
    (directory / "webhook.url").write_text(receiver.url)
    target = {"name": "tenant", "url_file": str(directory / "webhook.url"), "entities": [{"client-id": CLIENT}]}
    config = {
        "workers": 2,
        "quotas": {"entities": [{"client-id": CLIENT, "producer_byte_rate": QUOTA}], "window": {"samples": 2, "seconds": 1}},
        "sharing": {"topic": "usage-of-notified", "quotas_topic": "quotas-of-notified"},
        "notify": {"targets": [target], "quiet_seconds": 20},
    }
    with Weir(directory, kafka.bootstrap_servers, config) as weir:
        yield weir


def test_episode_of_two_workers_is_sent_once(
    weir: Weir, kafka: KafkaCluster, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = create_topic(kafka.bootstrap_servers, f"notified-{uuid4().hex[:8]}")
    settings = {"bootstrap.servers": weir.bootstrap_servers, "client.id": CLIENT, "linger.ms": 0, "batch.num.messages": 1}
    producers = [Producer(settings) for _ in range(PRODUCERS)]
    for producer in producers:
        for _ in range(10):
            producer.produce(topic, bytes(20_000))
        producer.poll(0)
    try:
        wait_until(lambda: "throttled" in receiver.events(), "the first throttle is sent")
        wait_until(
            lambda: all(weir.metric("weir_worker_connections", worker=worker) > 0 for worker in "01"),
            "both workers have clients",
        )
        text = weir.get(f"/entities?client-id={CLIENT}")
        assert "Quotas of client-id etl" in text
        assert "97.7 KiB/s (producer_byte_rate)" in text
        (row,) = weir.api(f"entities?client-id={CLIENT}")["rows"]
        place = f"{Path(weir.config_file).name}:"
        assert row["set_in"].startswith(place)
        assert (row["limit"], row["key"], row["unit"]) == (QUOTA, "producer_byte_rate", "bytes/s")
        assert row["addresses"] == ["127.0.0.1"]
        assert main(["explain", "--admin", weir.admin, "--client-id", CLIENT]) == 0
        assert place in capsys.readouterr().out
    finally:
        for producer in producers:
            producer.purge()
            producer.flush(60)
    wait_until(lambda: "ended" in receiver.events(), "the end is sent", timeout=180.0)
    assert receiver.events().count("throttled") == 1
    (throttled,) = [body for body in receiver.bodies if body["event"] == "throttled"]
    assert throttled["quota"]["entity"] == f"client-id={CLIENT}"
    assert throttled["quota"]["set_in"].startswith(place)
    log = weir.log()
    assert log.count(f"client-id {CLIENT} is throttled by producer_byte_rate 97.7 KiB/s of client-id={CLIENT}") == 1
    assert "s3cret-path" not in log + json.dumps(weir.api("config"))
    sent = partial(weir.metric, "weir_notify_notifications_total", target="tenant", result="sent")
    wait_until(lambda: sent() == len(receiver.bodies), "each notification is counted")
