"""New connections do not bypass a debt: the first request of each waits while the bucket is in debt."""

from uuid import UUID

import pytest

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.hostile.stub_broker import Request
from tests.protocol import codec
from tests.weir_process import wait_until

CONNECTIONS = 40


def create_topics(correlation_id: int, name: str, partitions: int) -> bytes:
    """A CreateTopics v5, the last version with a permissive quota (KIP-599)."""
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
    return codec.encode_request(ApiKey.CREATE_TOPICS, 5, {"topics": [topic], "timeout_ms": 1000}, correlation_id, "etl")


def created(request: Request) -> bytes:
    names = [topic.name for topic in request.decode().topics]
    return request.answer(topics=[{"name": name, "error_code": 0} for name in names])


def shared(request: Request) -> bytes:
    """Answer a ShareFetch with half a megabyte, regardless of its max_bytes."""
    leader = {"leader_id": 1, "leader_epoch": 0}
    partition = {"partition_index": 0, "current_leader": leader, "records": bytes(500_000)}
    return request.answer(responses=[{"topic_id": UUID(int=1), "partitions": [partition]}])


DEBTS = {
    "produce": ("producer_byte_rate", 1024, m.produce(1, size=500_000), lambda number: m.produce(1, size=10_000)),
    "mutation": ("controller_mutation_rate", 1, create_topics(1, "first", 500), lambda n: create_topics(1, f"topic-{n}", 10)),
    "share fetch": ("consumer_byte_rate", 1024, m.share_fetch(1), lambda number: m.share_fetch(1)),
}


@pytest.mark.parametrize("debt", DEBTS)
def test_new_connections_wait_for_debt(debt, broker, start_weir, connect):
    key, rate, first, later = DEBTS[debt]
    broker.answers |= {ApiKey.CREATE_TOPICS: created, ApiKey.SHARE_FETCH: shared}
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": [{"client-id": "etl", key: rate}]})
    connect(weir).ask(first)
    for number in range(CONNECTIONS):
        connect(weir).send(later(number))
    wait_until(lambda: weir.metric("weir_muted_connections") == CONNECTIONS + 1, "all connections are muted")
    assert broker.count(int.from_bytes(first[4:6], "big")) == 1


def test_pipelined_share_fetches_are_forwarded_singly(broker, start_weir, connect):
    broker.answers[ApiKey.SHARE_FETCH] = shared
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": [{"client-id": "etl", "consumer_byte_rate": 1024}]})
    client = connect(weir)
    client.send(*(m.share_fetch(number) for number in range(100)))
    client.receive()
    wait_until(lambda: weir.metric("weir_muted_connections") == 1, "the connection is muted")
    assert broker.count(ApiKey.SHARE_FETCH) == 1
