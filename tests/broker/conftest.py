"""Every test that asks for `target` runs four times: direct and through Weir, on one broker and on three."""

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


@pytest.fixture(params=["direct-1", "weir-1", "direct-3", "weir-3"], scope="session")
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with real brokers get a second try, those of the client matrix a third. The summary marks retried tests with `R`.

    The matrix shows that a client works through Weir if it works directly. The libraries' own races with a changed cluster
    happen directly as well. Examples are a topic that not every broker knows yet, and a group that rebalances once more.
    The groups of `kafka-python` fail so once in some hundred tests. Other tests share their CPUs with starting JVMs and miss
    their deadlines of some seconds. A test that fails twice is wrong. Investigate a test that often needs its second try.
    """
    for item in items:
        if "target" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=1))
        elif item.get_closest_marker("broker") or item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=1))
