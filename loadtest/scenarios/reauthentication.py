"""Re-authentication under load (KIP-368): the broker ends the sessions of producers and a consumer every few seconds.

    python -m loadtest.scenarios.reauthentication --seconds 60

A client that re-authenticates in time keeps its connection. So the scenario counts disconnects during the load, errors of
clients, and acknowledged records that are missing in the log or repeated.
"""

import argparse
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from loadtest.testkit.gateway_process import CompiledGateway
from loadtest.testkit.kafka import KafkaCluster, Tool, start_tool
from loadtest.testkit.kafka.sasl import MECHANISMS, java_properties, librdkafka_properties, sasl_listener, scram_arguments

MAX_REAUTH_MS = 5_000
LISTENER = "SHORT"
PASSWORDS = {"alice": "alice-password", "weir": "weir-password"}
PARTITIONS = 2
RECORD_BYTES = 1_000
PER_SECOND = 200
"""Records per second of each producer."""

_TIMEOUT = 30.0
_SETTLE_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Report:
    """The results. `reauthentications` counts those on connections that had authenticated before."""

    seconds: float
    acknowledged: int
    lost: int
    doubled: int
    errors: tuple[str, ...]
    disconnects: int
    reauthentications: int

    def __str__(self) -> str:
        return (
            f"{self.seconds:.0f} s with connections.max.reauth.ms={MAX_REAUTH_MS}: {self.acknowledged} records acknowledged, "
            f"{self.lost} lost, {self.doubled} doubled, {self.reauthentications} re-authentications, "
            f"{self.disconnects} disconnects, errors: {', '.join(self.errors) or 'none'}"
        )


class _Load:
    """A librdkafka producer for one mechanism, at an even rate, in its own thread. A record's value is its number."""

    def __init__(self, servers: str, mechanism: str, topic: str) -> None:
        self._topic = topic
        self.mechanism = mechanism
        self.errors: list[str] = []
        self.acknowledged = 0
        self._stopped = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "client.id": f"producer-{mechanism}",
                "enable.idempotence": True,
                "linger.ms": 5,
                "error_cb": self._failed,
                **librdkafka_properties(mechanism, "alice", PASSWORDS["alice"]),
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        if left := self._producer.flush(_TIMEOUT):
            self.errors.append(f"{left} records of {self.mechanism} are not acknowledged")
        del self._producer  # stops its reconnects; `error_cb` also holds a reference to it

    def _failed(self, error: KafkaError) -> None:
        self.errors.append(f"{self.mechanism}: {error.name()}")

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self._failed(error)

    def _run(self) -> None:
        number = 0
        begin = time.monotonic()
        while not self._stopped.is_set():
            while number < (time.monotonic() - begin) * PER_SECOND:
                value = f"{self.mechanism} {number} ".encode().ljust(RECORD_BYTES, b".")
                self._producer.produce(self._topic, value, partition=number % PARTITIONS, on_delivery=self._delivered)
                number += 1
            self._producer.poll(0.005)


class Gateway(Protocol):
    """A running gateway; `get` returns an admin page."""

    bootstrap_servers: str

    def get(self, path: str) -> str: ...


def run(cluster: KafkaCluster, gateway: Gateway, seconds: float, directory: Path) -> Report:
    """Put load on a gateway in front of a cluster's LISTENER for some seconds."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    topic = f"reauthentication-{uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(_TIMEOUT)
    loads = [_Load(gateway.bootstrap_servers, mechanism, topic) for mechanism in MECHANISMS]
    consumer = Consumer(
        {
            "bootstrap.servers": gateway.bootstrap_servers,
            "client.id": "consumer",
            "group.id": "reauthentication",
            "error_cb": lambda error: loads[0].errors.append(f"consumer: {error.name()}"),
            **librdkafka_properties("SCRAM-SHA-512", "alice", PASSWORDS["alice"]),
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    seen: Counter[bytes] = Counter()
    java_records = round((seconds + 2 * _SETTLE_SECONDS) * PER_SECOND)  # so that it runs at least as long as the other clients
    with _java(gateway.bootstrap_servers, topic, java_records, directory) as java:
        for load in loads:
            load.start()
        _consume_for(consumer, seen, _SETTLE_SECONDS)  # until all clients have opened their connections
        before = _Connections.of(gateway)
        _consume_for(consumer, seen, seconds)
        after = _Connections.of(gateway)
        for load in loads:
            load.stop()
        java_output = java.finish(_TIMEOUT + seconds)
    acknowledged = sum(load.acknowledged for load in loads)
    deadline = time.monotonic() + _TIMEOUT
    while seen.total() < acknowledged + java_records and time.monotonic() < deadline:
        _consume_for(consumer, seen, 0.5)
    consumer.close()
    numbered = Counter(
        {value: count for value, count in seen.items() if value.startswith(tuple(m.encode() for m in MECHANISMS))}
    )
    errors = [error for load in loads for error in load.errors]
    errors += [line for line in (*java_output.splitlines(), *java.errors) if "WARN" in line or "ERROR" in line]
    from_java = seen.total() - numbered.total()
    return Report(
        seconds,
        acknowledged + java_records,
        acknowledged - len(numbered) + max(java_records - from_java, 0),
        numbered.total() - len(numbered) + max(from_java - java_records, 0),
        tuple(errors),
        after.closed - before.closed,
        after.authenticated_anew - before.authenticated_anew,
    )


def _java(servers: str, topic: str, records: int, directory: Path) -> Tool:
    """Kafka's own producer beside them."""
    config = directory / "java.properties"
    settings = java_properties("SCRAM-SHA-256", "alice", PASSWORDS["alice"]) | {
        "bootstrap.servers": servers,
        "client.id": "java",
        "acks": "all",
    }
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return start_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(records), "--record-size", str(RECORD_BYTES)),
        *("--throughput", str(PER_SECOND), "--command-config", str(config)),
    )


def _consume_for(consumer: Consumer, seen: Counter[bytes], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for message in consumer.consume(500, timeout=0.1):
            if message.error() is None:
                seen[message.value() or b""] += 1


@dataclass(frozen=True, slots=True)
class _Connections:
    """A gateway's counts so far: ended connections and re-authentications."""

    closed: int
    authenticated_anew: int

    @classmethod
    def of(cls, gateway: "Gateway") -> "_Connections":
        lines = gateway.get("/metrics").splitlines()

        def total(name: str) -> int:
            return round(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))))

        accepted = total("weir_connections_accepted_total")
        return cls(accepted - total("weir_connections"), total("weir_authentications_total") - accepted)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=60.0, help="duration of the load (default: 60)")
    seconds = options.parse_args().seconds
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        listener = sasl_listener(LISTENER, PASSWORDS, max_reauth_ms=MAX_REAUTH_MS)
        with KafkaCluster(directory, 1, listeners=[listener], format_arguments=scram_arguments(PASSWORDS)) as cluster:
            (directory / "password").write_text(PASSWORDS["weir"])
            sasl = {"mechanism": "SCRAM-SHA-512", "username": "weir", "password_file": str(directory / "password")}
            servers = cluster.bootstrap_servers_of(LISTENER)
            upstream = {"bootstrap_servers": [servers], "sasl": sasl}
            with CompiledGateway(directory / "weir", servers, {"upstream": upstream}) as gateway:
                print(run(cluster, gateway, seconds, directory))


if __name__ == "__main__":
    main()
