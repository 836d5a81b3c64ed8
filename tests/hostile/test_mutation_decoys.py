"""A client in debt adds entries that cost nothing to its topic requests. They must not reach the controller."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from protocol.api_keys import ApiKey
from tests.gateway.features.controller_mutations import mutation_session as m
from tests.hostile.stub_broker import Request, StubBroker
from tests.protocol import codec
from tests.weir_process import Weir, wait_until

QUOTAS = {"entities": [{"client-id": "etl", "controller_mutation_rate": 2}]}
OVER_BURST = 120
ATTEMPTS = 10
THROTTLED = 89
CLUSTER_METADATA = "__cluster_metadata"
NO_ID = uuid.UUID(int=0)


class Controller:
    """The stub's controller. Like KRaft's, it drops `__cluster_metadata` before it counts the partitions of a request.

    `changed` counts created and deleted partitions.
    """

    def __init__(self, broker: StubBroker) -> None:
        self.topics = broker.topics
        self.changed = 0
        broker.answers |= {ApiKey.CREATE_TOPICS: self.create, ApiKey.DELETE_TOPICS: self.delete}

    def create(self, request: Request) -> bytes:
        topics = request.decode().topics
        wanted = [topic for topic in topics if topic.name != CLUSTER_METADATA]
        too_many = sum(topic.num_partitions for topic in wanted) > 10_000
        results = []
        for topic in topics:
            error = 29 if topic not in wanted else 44 if too_many else 0
            if not error:
                self.changed += topic.num_partitions
                self.topics[topic.name] = topic.num_partitions
            results.append({"name": topic.name, "error_code": error, "num_partitions": topic.num_partitions})
        return m.answered(m.CREATE, request.correlation_id, results, version=request.version)

    def delete(self, request: Request) -> bytes:
        results = []
        for topic in request.decode().topics:
            error = 42 if topic.topic_id else 0 if topic.name in self.topics else 3
            if not error:
                self.changed += self.topics.pop(topic.name)
            results.append({"name": topic.name, "topic_id": topic.topic_id or NO_ID, "error_code": error})
        return m.answered(m.DELETE, request.correlation_id, results, version=request.version)


@pytest.fixture
def controller(broker: StubBroker) -> Controller:
    return Controller(broker)


@pytest.fixture
def weir(broker: StubBroker, controller: Controller, start_weir: Callable[..., Weir]) -> Weir:
    return start_weir(broker.bootstrap_servers, quotas=QUOTAS)


def errors(answer: bytes, key: int = m.CREATE) -> dict[str, int]:
    """Return the error codes of an answer by topic."""
    decoded = codec.decode_response(key, m.LATEST[ApiKey(key)], answer)
    rows = decoded["topics" if key == m.CREATE else "responses"]
    return {row["name"]: row["error_code"] for row in rows}


def test_decoy_topic_does_not_lift_strict_quota(weir, controller, connect):
    for number in range(ATTEMPTS):
        request = m.create(1, {CLUSTER_METADATA: 10_001, f"t{number}": OVER_BURST})
        found = errors(connect(weir).ask(request)[0])
        assert found == (
            {CLUSTER_METADATA: 29, "t0": 0} if number == 0 else {CLUSTER_METADATA: THROTTLED, f"t{number}": THROTTLED}
        )
    assert controller.changed == OVER_BURST


def test_oversized_creation_is_given_back(weir, controller, connect):
    client = connect(weir)
    assert errors(client.ask(m.create(1, {"a": 6_000, "b": 6_000}))[0]) == {"a": 44, "b": 44}
    assert errors(client.ask(m.create(2, {"c": 1}))[0]) == {"c": 0}
    assert weir.metric("weir_quota_tokens", kind="controller_mutation") > 20


def test_invalid_twin_does_not_hide_a_deletion(weir, broker, controller, connect):
    broker.topics |= {f"t{number}": OVER_BURST for number in range(ATTEMPTS)}
    for number in range(ATTEMPTS):
        topics = [{"name": f"t{number}", "topic_id": uuid.UUID(int=7)}, {"name": f"t{number}", "topic_id": NO_ID}]
        connect(weir).ask(codec.encode_request(m.DELETE, 6, {"topics": topics, "timeout_ms": 1_000}, 1, "etl"))
    assert controller.changed == OVER_BURST


def test_debtor_cannot_use_stale_metadata(weir, broker, controller, connect):
    """The broker's metadata still lists topics that the controller has already deleted."""
    stale = broker.topics | {f"t{number}": 1 for number in range(ATTEMPTS)}
    broker.topics = stale
    connect(weir).ask(m.create(1, {"a": OVER_BURST}))
    for number in range(ATTEMPTS):
        found: dict[str, Any] = errors(connect(weir).ask(m.create(1, {f"t{number}": OVER_BURST}))[0])
        assert found == {f"t{number}": 36}
    assert controller.changed == OVER_BURST


def test_used_connections_wait_for_permissive_debt(weir, controller, connect):
    """Each connection sends a harmless request before the debt, so that its next request is not its first."""
    clients = [connect(weir) for _ in range(ATTEMPTS)]
    for client in clients:
        client.ask(m.create(1, {"a": 0}, version=5))
    for number, client in enumerate(clients):
        client.send(m.create(2, {f"t{number}": OVER_BURST}, version=5))
    wait_until(lambda: weir.metric("weir_muted_connections") == ATTEMPTS, "all connections are muted")
    assert controller.changed == OVER_BURST
