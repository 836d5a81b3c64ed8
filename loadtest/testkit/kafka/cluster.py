"""A cluster of real Kafka nodes on this machine."""

import base64
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from loadtest.testkit.kafka.node import KafkaListener, KafkaNode


def _properties(brokers: int) -> dict[str, str]:
    """Differences from Kafka's defaults: small and quick to start, but as durable as in production."""
    copies = str(min(brokers, 3))
    in_sync = "2" if brokers >= 3 else "1"
    return {
        "auto.create.topics.enable": "false",
        "num.partitions": "1",
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "1000",
        "group.consumer.heartbeat.interval.ms": "1000",
        "broker.heartbeat.interval.ms": "500",
        "controlled.shutdown.enable": "true",
        # No log segment is deleted during a test.
        "log.retention.ms": "-1",
        "log.segment.bytes": str(64 * 1024 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
        # Otherwise KRaft writes a no-op record twice a second, which costs an idle broker 0.5 to 1 % of a core.
        "metadata.max.idle.interval.ms": "0",
    }


SHORT_SESSIONS = {
    "broker.session.timeout.ms": "3000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1500",
}
"""For clusters whose brokers are killed: the controller fences a broker after three seconds, and only then can it register
again. Kafka's default is nine seconds. On a busy machine, three may also fence a broker that only stalls."""


class KafkaCluster:
    """One or more combined KRaft nodes in `directory`, as a context manager.

    A cluster of one node starts in about 5 s, one of three in 15 s. Each node needs 512 MB of heap. The nodes end with this
    process; the files stay.

    `properties` apply to every node and override the defaults here. Every node has `listeners` besides its plaintext one.
    `format_arguments` go to StorageTool, such as `--add-scram`.
    """

    def __init__(
        self,
        directory: Path,
        brokers: int = 1,
        properties: Mapping[str, str] | None = None,
        listeners: Sequence[KafkaListener] = (),
        format_arguments: Sequence[str] = (),
    ) -> None:
        settings = _properties(brokers) | dict(properties or {})
        self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.brokers = [
            KafkaNode(node_id, directory / f"node-{node_id}", settings, listeners, format_arguments)
            for node_id in range(brokers)
        ]
        voters = ",".join(f"{node.id}@127.0.0.1:{node.controller_port}" for node in self.brokers)
        for node in self.brokers:
            node.voters = voters

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.address for node in self.brokers)

    def bootstrap_servers_of(self, listener: str) -> str:
        """`host:port,...` of the additional listener with this name, for all brokers."""
        return ",".join(node.address_of(listener) for node in self.brokers)

    def start(self, timeout: float = 90.0) -> None:
        """Format and start the nodes, and wait until each node sees all others. Raises `NodeError`, `JarsMissingError`."""
        try:
            for node, formatting in [(node, node.format(self.cluster_id)) for node in self.brokers]:
                node.finish_format(formatting)
            for node in self.brokers:
                node.start(wait=0)
            self.wait_until_ready(timeout)
        except BaseException:
            self.stop()
            raise

    def wait_until_ready(self, timeout: float = 90.0) -> None:
        """Wait until each node sees all others. Raises `NodeError` after `timeout` seconds for a node."""
        everyone = frozenset(node.id for node in self.brokers)
        for node in self.brokers:
            node.wait_until_ready(timeout, everyone)

    def stop(self) -> None:
        """Kill every node. In a clean shutdown, the nodes of a quorum would wait for each other."""
        for node in self.brokers:
            if node.running:
                node.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()
