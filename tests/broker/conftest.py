"""Each test that asks for `target` runs through Weir, and as a control directly, on one broker and on three."""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest

from loadtest.testkit.kafka import KafkaCluster
from tests.broker.direct_connections import DirectConnections
from tests.broker.topics import create_topic
from tests.weir_process import Weir


@dataclass(frozen=True)
class Target:
    """The address that a client connects to, and the cluster behind it."""

    bootstrap_servers: str
    brokers: int
    ports: range | None
    """The only ports in addresses that clients may get; None for a direct connection."""

    def name(self, kind: str) -> str:
        """Return a unique name for a topic, group or transaction."""
        return f"{kind}-{uuid4().hex[:12]}"

    def create_topic(self) -> str:
        """Create a topic of `PARTITIONS` partitions on every broker and wait until it is ready."""
        return create_topic(self.bootstrap_servers, self.name("topic"), replicas=self.brokers)


@pytest.fixture
def collected_garbage() -> Iterator[None]:
    """Collect the sockets that kafka-python leaves behind, so that their warnings do not fail another test."""
    yield
    gc.collect()


TARGETS = [
    pytest.param("direct-1", marks=pytest.mark.control),
    "weir-1",
    pytest.param("direct-3", marks=pytest.mark.control),
    "weir-3",
]


@pytest.fixture(params=TARGETS, scope="session")
def cluster_and_gateway(request: pytest.FixtureRequest) -> tuple[KafkaCluster, Weir | None]:
    via, _, brokers = request.param.partition("-")
    suffix = "" if brokers == "1" else "3"
    # The gateway's fixture starts the cluster. Fixtures are requested by name, so that only needed ones start.
    gateway = request.getfixturevalue("weir" + suffix) if via == "weir" else None
    return request.getfixturevalue("kafka" + suffix), gateway


@pytest.fixture
def target(cluster_and_gateway: tuple[KafkaCluster, Weir | None]) -> Iterator[Target]:
    """The target of the test. Through Weir, the test fails if any process connects to a broker's own address meanwhile."""
    cluster, gateway = cluster_and_gateway
    if gateway is None:
        yield Target(cluster.bootstrap_servers, len(cluster.brokers), None)
        return
    allowed = [gateway.process.pid, *(node.pid for node in cluster.brokers)]
    with DirectConnections([node.port for node in cluster.brokers], allowed) as direct:
        yield Target(gateway.bootstrap_servers, len(cluster.brokers), gateway.ports)
    assert direct.found == set(), "connected to a broker's own address"
