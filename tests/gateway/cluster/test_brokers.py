"""The brokers that Weir knows, by its own metadata and by answers to clients."""

import logging

import pytest

from gateway.cluster.brokers import Brokers
from protocol.bodies.addresses import Broker
from protocol.errors import OtherCluster

BOOTSTRAP = ("bootstrap", 9092)
FIRST, SECOND, THIRD = ("kafka-1", 9092), ("kafka-2", 9092), ("kafka-3", 9092)


def entry(node_id: int, host: str, port: int = 9092) -> Broker:
    """A broker in an answer."""
    return Broker(node_id, host, port, 0, 0, 0)


@pytest.fixture
def brokers() -> Brokers:
    """Two brokers of the cluster "mine"."""
    found = Brokers([BOOTSTRAP])
    assert found.why_foreign("mine") is None
    found.learn_live({1: FIRST, 2: SECOND})
    return found


def test_missing_broker_gets_no_new_clients(brokers: Brokers) -> None:
    brokers.learn_live({1: FIRST})
    assert brokers.anyone() == [BOOTSTRAP, FIRST]
    assert brokers.addresses() == {1: FIRST}
    assert brokers.address(2) == SECOND, "clients that are at its port still reach it"
    brokers.learn_live({1: FIRST, 2: SECOND})
    assert brokers.anyone() == [BOOTSTRAP, FIRST, SECOND]


def test_new_broker_of_a_clients_answer_gets_clients(brokers: Brokers) -> None:
    brokers.learn_answer("mine", [entry(3, "kafka-3")])
    assert brokers.anyone() == [BOOTSTRAP, FIRST, SECOND, THIRD]


def test_client_cannot_bring_a_missing_broker_back(brokers: Brokers) -> None:
    """Its broker may have old metadata."""
    brokers.learn_live({1: FIRST})
    brokers.learn_answer("mine", [entry(2, "kafka-2")])
    assert brokers.anyone() == [BOOTSTRAP, FIRST]


@pytest.mark.parametrize(
    ("cluster_id", "moved"), [("mine", True), (None, False), ("", False)], ids=["own id", "no id", "empty id"]
)
def test_only_answers_of_own_cluster_move_a_broker(brokers: Brokers, cluster_id: str | None, moved: bool) -> None:
    brokers.learn_answer(cluster_id, [entry(2, "moved"), entry(3, "kafka-3")])
    assert brokers.address(2) == (("moved", 9092) if moved else SECOND)
    assert brokers.address(3) == THIRD


def test_other_cluster_teaches_nothing_and_names_remedy(brokers: Brokers) -> None:
    with pytest.raises(OtherCluster, match=r"cluster 'other'. Weir serves cluster 'mine' — .* restart Weir"):
        brokers.learn_answer("other", [entry(1, "elsewhere"), entry(3, "kafka-3")])
    assert brokers.addresses() == {1: FIRST, 2: SECOND}


def test_brokers_without_cluster_id_are_followed() -> None:
    brokers = Brokers([BOOTSTRAP])
    brokers.learn_answer(None, [entry(1, "kafka-1")])
    brokers.learn_answer(None, [entry(1, "moved")])
    assert brokers.address(1) == ("moved", 9092)
    assert brokers.cluster_id is None


def test_first_worker_decides_the_cluster() -> None:
    brokers = Brokers([BOOTSTRAP], agree_on=lambda _: "mine")
    assert brokers.why_foreign("other") is not None
    assert brokers.cluster_id == "mine"


def test_missing_broker_is_logged_once(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(3):
        brokers.learn_live({1: FIRST})
    assert [record.getMessage() for record in caplog.records] == [
        "broker 2 at kafka-2:9092 is not in the cluster's metadata any more"
    ]
