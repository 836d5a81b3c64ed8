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
    """Where a client connects, and what it finds there."""

    bootstrap_servers: str
    brokers: int
    ports: range | None
    """The only ports that a client may be told of; None where it is connected directly."""

    def name(self, kind: str) -> str:
        """A name for a topic, group or transaction that nobody else uses."""
        return f"{kind}-{uuid4().hex[:12]}"

    def create_topic(self) -> str:
        """A new topic of `PARTITIONS` partitions on every broker, which is ready for use."""
        return create_topic(self.bootstrap_servers, self.name("topic"), replicas=self.brokers)


@pytest.fixture(params=["direct-1", "weir-1", "direct-3", "weir-3"], scope="session")
def cluster_and_gateway(request: pytest.FixtureRequest) -> tuple[KafkaCluster, Weir | None]:
    via, _, brokers = request.param.partition("-")
    suffix = "" if brokers == "1" else "3"
    # The gateway's own fixture starts the cluster; asked for by name so that nothing starts that no test needs.
    gateway = request.getfixturevalue("weir" + suffix) if via == "weir" else None
    return request.getfixturevalue("kafka" + suffix), gateway


@pytest.fixture
def target(cluster_and_gateway: tuple[KafkaCluster, Weir | None]) -> Iterator[Target]:
    """Where to connect. Through Weir, the test fails if anybody connected to a broker's own address meanwhile."""
    cluster, gateway = cluster_and_gateway
    if gateway is None:
        yield Target(cluster.bootstrap_servers, len(cluster.brokers), None)
        return
    allowed = [gateway.process.pid, *(node.pid for node in cluster.brokers)]
    with DirectConnections([node.port for node in cluster.brokers], allowed) as direct:
        yield Target(gateway.bootstrap_servers, len(cluster.brokers), gateway.ports)
    assert direct.found == set(), "connected to a broker's own address"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with real brokers have a second try, those of the client matrix a third, and the summary names who needed it (`R`).

    What the matrix shows is that what passes directly passes through Weir. The libraries' own races with a cluster that has
    just changed (a topic that not every broker knows yet, a group that rebalances once more) happen directly as well: seen
    with kafka-python's groups, once in some hundred tests. Other tests share their processors with JVMs that start beside
    them, and what has to be seen within some seconds is then not. Whatever fails twice is wrong; whatever needs its second
    try again and again is looked into.
    """
    for item in items:
        if "target" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=1))
        elif item.get_closest_marker("broker") or item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=1))
