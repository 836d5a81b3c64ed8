"""Several gateways that share one quota in front of one broker, and unpaced producers that can move between them."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from loadtest.testkit.gateway_process import GatewayProcess

USAGE_TOPIC = "__weir_usage"
CLIENT_ID = "etl"
RECORD_BYTES = 16_384
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Broker properties that `UsageTopicAccess` needs."""

_TIMEOUT = 30.0
_Process = TypeVar("_Process", bound=GatewayProcess)


def start_fleet(
    stack: ExitStack, kind: type[_Process], directory: Path, upstream: str, count: int, config: Mapping[str, Any]
) -> list[_Process]:
    """Start `count` gateways with one configuration that share their quotas. `stack` stops them."""
    gateways = [kind(directory / f"weir-{number}", upstream, {"sharing": {}, **config}) for number in range(count)]
    for gateway in gateways:
        gateway.launch()
        stack.push(gateway.__exit__)
    for gateway in gateways:
        gateway.wait_until_ready()
    return gateways


def is_disconnect(error: KafkaError) -> bool:
    """True for an error that librdkafka reports when it loses a connection."""
    return error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)


class UnpacedProducer:
    """Produces as fast as possible until closed: librdkafka in its own threads."""

    def __init__(self, bootstrap_servers: str, topic: str, client_id: str = CLIENT_ID) -> None:
        self.acknowledged = 0
        self.failed: Counter[str] = Counter()
        self.disconnects = 0
        self._topic = topic
        self._closed = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "client.id": client_id,
                "queue.buffering.max.messages": 16,
                "batch.num.messages": 1,
                "linger.ms": 0,
                "log_level": 0,
                "error_cb": self._note,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send no further requests."""
        self._closed.set()

    def close(self) -> None:
        """Stop, and discard the requests in flight."""
        self.stop()
        self._thread.join()
        del self._producer  # stops its reconnects; `error_cb` also holds a reference to it

    def _run(self) -> None:
        record = bytes(RECORD_BYTES)
        while not self._closed.is_set():
            try:
                self._producer.produce(self._topic, record, on_delivery=self._delivered)
                self._producer.poll(0)
            except BufferError:
                self._producer.poll(0.05)
        self._producer.purge()
        self._producer.flush(1.0)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acknowledged += 1
        elif not self._closed.is_set():
            self.failed[error.name()] += 1

    def _note(self, error: KafkaError) -> None:
        if is_disconnect(error) and not self._closed.is_set():
            self.disconnects += 1


class Load:
    """A number of producers for each gateway that can change at run time."""

    def __init__(self, gateways: Sequence[GatewayProcess], topic: str) -> None:
        self.producers: dict[int, list[UnpacedProducer]] = {}
        self._gateways = gateways
        self._topic = topic

    def put(self, counts: Sequence[int]) -> None:
        """Set the number of producers of each gateway. New producers start before old ones stop."""
        gone = []
        for number, count in enumerate(counts):
            there = self.producers.setdefault(number, [])
            while len(there) < count:
                there.append(UnpacedProducer(self._gateways[number].bootstrap_servers, self._topic))
            gone += there[count:]
            del there[count:]
        for producer in gone:
            producer.close()

    def trouble(self) -> int:
        """The disconnects and failed records of the current producers."""
        everyone = [producer for there in self.producers.values() for producer in there]
        return sum(producer.disconnects + producer.failed.total() for producer in everyone)

    def close(self) -> None:
        self.put([0] * len(self._gateways))


class UsageTopicAccess:
    """Denies all users access to the usage topic, including Weir, and allows it again. Needs a broker with `AUTHORIZER`."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        all_users = ("User:*", "*", AclOperation.ALL, AclPermissionType.DENY)
        self._rule = (ResourceType.TOPIC, USAGE_TOPIC, ResourcePatternType.LITERAL, *all_users)

    def deny(self) -> None:
        for future in self._admin.create_acls([AclBinding(*self._rule)]).values():
            future.result(_TIMEOUT)

    def allow(self) -> None:
        for future in self._admin.delete_acls([AclBindingFilter(*self._rule)]).values():
            future.result(_TIMEOUT)
