"""New connections do not bypass a debt: the first request of each waits while the bucket is in debt."""

from uuid import UUID

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


def flood(weir, connect, frames):
    """Send each frame on its own connection; return once the gateway defers all of them."""
    for frame in frames:
        connect(weir).send(frame)
    wait_until(lambda: weir.metric("weir_muted_connections") == len(frames) + 1, "all connections are muted")


def test_new_connections_wait_for_produce_debt(broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": [{"client-id": "etl", "producer_byte_rate": 1024}]})
    connect(weir).ask(m.produce(1, size=500_000))
    flood(weir, connect, [m.produce(1, size=10_000)] * CONNECTIONS)
    assert broker.count(ApiKey.PRODUCE) == 1


def test_new_connections_wait_for_mutation_debt(broker, start_weir, connect):
    broker.answers[ApiKey.CREATE_TOPICS] = created
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": [{"client-id": "etl", "controller_mutation_rate": 1}]})
    connect(weir).ask(create_topics(1, "first", 500))
    flood(weir, connect, [create_topics(1, f"topic-{number}", 10) for number in range(CONNECTIONS)])
    assert broker.count(ApiKey.CREATE_TOPICS) == 1


def share_fetch(correlation_id: int) -> bytes:
    values = {"group_id": "g", "member_id": "m", "topics": []}
    return codec.encode_request(ApiKey.SHARE_FETCH, 1, values, correlation_id, "etl")


def shared(request: Request) -> bytes:
    """Answer a ShareFetch with half a megabyte, regardless of its max_bytes."""
    leader = {"leader_id": 1, "leader_epoch": 0}
    partition = {"partition_index": 0, "current_leader": leader, "records": bytes(500_000)}
    return request.answer(responses=[{"topic_id": UUID(int=1), "partitions": [partition]}])


def test_new_connections_wait_for_share_fetch_debt(broker, start_weir, connect):
    broker.answers[ApiKey.SHARE_FETCH] = shared
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": [{"client-id": "etl", "consumer_byte_rate": 1024}]})
    connect(weir).ask(share_fetch(1))
    flood(weir, connect, [share_fetch(1)] * CONNECTIONS)
    assert broker.count(ApiKey.SHARE_FETCH) == 1


def test_pipelined_share_fetches_are_forwarded_singly(broker, start_weir, connect):
    broker.answers[ApiKey.SHARE_FETCH] = shared
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": [{"client-id": "etl", "consumer_byte_rate": 1024}]})
    client = connect(weir)
    client.send(*(share_fetch(number) for number in range(100)))
    client.receive()
    wait_until(lambda: weir.metric("weir_muted_connections") == 1, "the connection is muted")
    assert broker.count(ApiKey.SHARE_FETCH) == 1
