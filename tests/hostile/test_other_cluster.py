"""Another cluster gets the address of a broker. Weir follows its own cluster, and sends no client to the other one."""

from collections.abc import Callable, Iterator

import pytest

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.hostile.raw_client import RawClient
from tests.hostile.stub_broker import HOST, StubBroker
from tests.protocol import codec
from tests.weir_process import Weir, wait_until


@pytest.fixture
def other() -> Iterator[StubBroker]:
    """A broker of another cluster."""
    with StubBroker() as stub:
        yield stub


def belongs(broker: StubBroker, cluster_id: str, brokers: dict[int, int]) -> None:
    """Let a broker answer Metadata and DescribeCluster with these ports by node id."""
    rows = [{"node_id": node_id, "host": HOST, "port": port} for node_id, port in brokers.items()]
    broker.answers[ApiKey.METADATA] = lambda request: request.answer(cluster_id=cluster_id, brokers=rows, topics=[])
    broker.answers[ApiKey.DESCRIBE_CLUSTER] = lambda request: request.answer(cluster_id=cluster_id, brokers=rows)


def brokers_seen(client: RawClient) -> list[int]:
    """Ask for metadata; return the ids of the brokers, none if the connection is closed."""
    try:
        frame, _ = client.ask(m.metadata(1))
    except EOFError:
        return []
    return [each["node_id"] for each in codec.decode_response(ApiKey.METADATA, 12, frame)["brokers"]]


def is_refused(client: RawClient, request: bytes) -> bool:
    """True if the gateway closes the connection in place of an answer."""
    client.send(request)
    try:
        client.receive()
    except EOFError:
        return True
    return False


def test_removed_brokers_address_gets_no_clients(
    other: StubBroker, start_weir: Callable[..., Weir], connect: Callable[..., RawClient]
) -> None:
    """The bootstrap server is down, so clients would go to the next address that Weir knows."""
    with StubBroker() as mine:
        belongs(mine, "mine", {0: mine.port, 1: other.port})
        weir = start_weir(mine.bootstrap_servers, wait="/readyz")
        wait_until(lambda: "broker 1 is at" in weir.log(), "broker 1 is known")
        belongs(mine, "mine", {0: mine.port})
        belongs(other, "other", {0: other.port})
        wait_until(lambda: "is not in the cluster's metadata any more" in weir.log(), "broker 1 is missing")
    assert is_refused(connect(weir), m.metadata(1))
    assert "moved from" not in weir.log()
    assert not other.received


def test_other_cluster_behind_bootstrap_address_is_refused(
    broker: StubBroker, other: StubBroker, start_weir: Callable[..., Weir], connect: Callable[..., RawClient]
) -> None:
    """The client that finds it is disconnected; the next one is served by Weir's own cluster."""
    belongs(broker, "mine", {0: broker.port})
    belongs(other, "other", {0: other.port})
    weir = start_weir(f"{broker.bootstrap_servers},{other.bootstrap_servers}", wait="/readyz")
    wait_until(lambda: "the cluster is 'mine'" in weir.log(), "the cluster is known")
    belongs(broker, "other", {0: broker.port})
    belongs(other, "mine", {0: other.port})
    assert is_refused(connect(weir), m.metadata(1))
    wait_until(lambda: brokers_seen(connect(weir)) == [0], "the next address serves clients")
    assert weir.metric("weir_protocol_errors_total", reason="broker_other_cluster") == 1
    (told,) = weir.logged("connection closed")
    assert "cluster 'other'. Weir serves cluster 'mine'" in told["msg"]
    assert "restart Weir" in told["msg"]


def test_own_client_refuses_other_cluster(broker: StubBroker, start_weir: Callable[..., Weir]) -> None:
    belongs(broker, "mine", {0: broker.port})
    weir = start_weir(broker.bootstrap_servers, wait="/readyz")
    wait_until(lambda: "the cluster is 'mine'" in weir.log(), "the cluster is known")
    belongs(broker, "other", {0: 1, 7: broker.port})
    (told,) = weir.logged("can't be reached")
    assert f"{broker.bootstrap_servers}: this is a broker of cluster 'other'" in told["msg"]
    assert "restart Weir" in told["msg"]
    assert "moved from" not in weir.log()
    assert "broker 7 is at" not in weir.log()


def test_describe_cluster_of_other_cluster_is_refused(
    broker: StubBroker, start_weir: Callable[..., Weir], connect: Callable[..., RawClient]
) -> None:
    belongs(broker, "mine", {0: broker.port})
    weir = start_weir(broker.bootstrap_servers, wait="/readyz")
    wait_until(lambda: "the cluster is 'mine'" in weir.log(), "the cluster is known")
    belongs(broker, "other", {0: broker.port})
    assert is_refused(connect(weir), codec.encode_request(ApiKey.DESCRIBE_CLUSTER, 1, {}, 1, "etl"))
