"""The brokers that Weir knows, by its own metadata and by answers to clients."""

import logging

import pytest

from gateway.cluster.brokers import FORGET_SECONDS, LATE_SECONDS, Brokers
from protocol.bodies.addresses import Broker
from protocol.errors import OtherCluster

BOOTSTRAP = ("bootstrap", 9092)
START = 1000.0
BOTH, WITHOUT_SECOND = "both", "without second"
FIRST, SECOND, THIRD = ("kafka-1", 9092), ("kafka-2", 9092), ("kafka-3", 9092)


def entry(node_id: int, host: str, port: int = 9092) -> Broker:
    """A broker in an answer."""
    return Broker(node_id, host, port, 0, 0, 0)


@pytest.fixture
def brokers() -> Brokers:
    """Two brokers of the cluster "mine"."""
    found = Brokers([BOOTSTRAP])
    assert found.why_foreign("mine") is None
    found.learn_live({1: FIRST, 2: SECOND}, START)
    return found


def test_missing_broker_gets_no_new_clients(brokers: Brokers) -> None:
    brokers.learn_live({1: FIRST}, START)
    assert brokers.anyone() == [BOOTSTRAP, FIRST]
    assert brokers.addresses() == {1: FIRST}
    assert brokers.address(2) == SECOND, "clients that are at its port still reach it"
    brokers.learn_live({1: FIRST, 2: SECOND}, START)
    assert brokers.anyone() == [BOOTSTRAP, FIRST, SECOND]


def test_new_broker_of_a_clients_answer_gets_clients(brokers: Brokers) -> None:
    brokers.learn_answer("mine", [entry(3, "kafka-3")])
    assert brokers.anyone() == [BOOTSTRAP, FIRST, SECOND, THIRD]


def test_client_cannot_bring_a_missing_broker_back(brokers: Brokers) -> None:
    """Its broker may have old metadata."""
    brokers.learn_live({1: FIRST}, START)
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
        brokers.learn_live({1: FIRST}, START)
    assert [record.getMessage() for record in caplog.records] == [
        "broker 2 at kafka-2:9092 is not in the cluster's metadata any more"
    ]


def answers(every: float, count: int, names: str = WITHOUT_SECOND, *, after: float = 0.0) -> list[tuple[float, str]]:
    """Answers with the time since the start."""
    return [(after + every * number, names) for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("given", "due"),
    [
        pytest.param(answers(5.0, 120), [], id="missing for 595 s"),
        pytest.param(answers(5.0, 121), [2], id="missing for 600 s"),
        pytest.param([(1.0, WITHOUT_SECOND), (9_000.0, WITHOUT_SECOND)], [], id="two answers, and none for hours"),
        pytest.param(answers(60.0, 30), [], id="rare answers count little"),
        pytest.param(answers(60.0, 41), [2], id="rare answers count"),
        pytest.param([*answers(5.0, 119), (599.0, BOTH), *answers(5.0, 119, after=600.0)], [], id="one answer names it"),
        pytest.param([*answers(5.0, 121), (610.0, BOTH)], [], id="it comes back before it is forgotten"),
    ],
)
def test_broker_is_due_if_all_answers_lack_it(brokers: Brokers, given: list[tuple[float, str]], due: list[int]) -> None:
    for seconds, names in given:
        brokers.learn_live({1: FIRST, 2: SECOND} if names == BOTH else {1: FIRST}, START + seconds)
    assert brokers.due() == due
    assert 2 in brokers


def test_forgotten_broker_is_unknown_until_it_is_learnt(brokers: Brokers) -> None:
    forgotten: list[int] = []
    new: list[int] = []
    brokers.on_forgotten(forgotten.append)
    brokers.on_new(new.append)
    for number in range(int(FORGET_SECONDS / LATE_SECONDS) + 1):
        brokers.learn_live({1: FIRST}, START + LATE_SECONDS * number)
    brokers.forget(2)
    assert (forgotten, 2 in brokers, brokers.due(), brokers.missing()) == ([2], False, [], {})
    brokers.learn_live({1: FIRST, 2: SECOND}, START + 2_000.0)
    assert (new, brokers.anyone()) == ([2], [BOOTSTRAP, FIRST, SECOND])
