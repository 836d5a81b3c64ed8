"""The demo's clients: librdkafka in threads of this process."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from confluent_kafka import Consumer, KafkaException, Producer, ThrottleEvent

ORDERS, CLICKS = "orders", "clicks"

_KIB = 1024
_MIB = 1024 * _KIB
RECORD = bytes(_KIB - 1)
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Role:
    """A client of the demo. `wants` is its desired rate in bytes/s; None means as much as possible."""

    name: str
    kind: str
    topic: str
    quota: int
    wants: int | None
    about: str

    def entity(self) -> dict[str, object]:
        """The client's row of `quotas.entities`."""
        key = "producer_byte_rate" if self.kind == "produce" else "consumer_byte_rate"
        return {"client-id": self.name, key: self.quota}


ROLES = (
    Role("well-behaved", "produce", ORDERS, _MIB, _MIB // 2, "sends at half of its quota: never throttled"),
    Role("greedy", "produce", CLICKS, _MIB, None, "sends without a pause: throttled to its quota, in small even steps"),
    Role("reader", "fetch", CLICKS, _MIB // 2, None, "reads the records of greedy, but its quota is half as large"),
)


class Client:
    """A thread that produces or consumes until `stop`. `throttle_time` is the last one in seconds."""

    # Small requests and a short queue, so that the client's batching does not hide the effect of the quota.
    batching: ClassVar[Mapping[str, int]] = {
        "batch.size": 64 * _KIB, "queue.buffering.max.kbytes": 2 * _KIB, "linger.ms": 20,
    }  # fmt: skip

    def __init__(self, role: Role, bootstrap_servers: str) -> None:
        self.role = role
        self.throttle_time = 0.0
        self.failure = ""
        self._bootstrap_servers = bootstrap_servers
        self._began = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=role.name, daemon=True)

    def start(self) -> None:
        """Start the thread. An error ends up in `failure`."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; `join` waits for it."""
        self._stop.set()

    def join(self) -> None:
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        try:
            if self.role.kind == "produce":
                self._produce()
            else:
                self._consume()
        except KafkaException as error:
            self.failure = str(error)

    def _settings(self) -> dict[str, object]:
        return {
            "bootstrap.servers": self._bootstrap_servers,
            "client.id": self.role.name,
            "throttle_cb": self._throttled,
            "log_level": 0,
        }

    def _throttled(self, event: ThrottleEvent) -> None:
        """Receives throttle_time_ms from the broker; here, Weir set it."""
        self.throttle_time = event.throttle_time

    def _produce(self) -> None:
        producer = Producer({**self._settings(), **self.batching})
        self._began, sent = time.monotonic(), 0
        while not self._stop.is_set():
            if (ahead := self._ahead(sent)) > 0:
                producer.poll(min(ahead, POLL_SECONDS))
                continue
            try:
                producer.produce(self.role.topic, RECORD)
                sent += len(RECORD)
            except BufferError:  # the queue is full
                producer.poll(POLL_SECONDS)
        producer.purge()
        producer.flush(POLL_SECONDS)

    def _ahead(self, sent: int) -> float:
        """Seconds until the next record is due, after so many bytes."""
        return 0.0 if self.role.wants is None else self._began + sent / self.role.wants - time.monotonic()

    def _consume(self) -> None:
        group = {"group.id": "readers", "auto.offset.reset": "earliest", "fetch.message.max.bytes": 64 * _KIB}
        consumer = Consumer({**self._settings(), **group})
        consumer.subscribe([self.role.topic])
        while not self._stop.is_set():
            consumer.consume(num_messages=500, timeout=POLL_SECONDS)
        consumer.close()
