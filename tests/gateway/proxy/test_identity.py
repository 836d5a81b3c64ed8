import pytest

from gateway.proxy.identity import ANONYMOUS, Client
from gateway.quotas.engine import QuotaEngine, QuotaSettings
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from tests.gateway.proxy.transcript import START, limits


def engine_and_client():
    engine = QuotaEngine(limits(produce=1_000, fetch=1_000), START)
    return engine, Client(engine)


def connections(engine):
    return {(row.kind, row.client_id): row.connections for row in engine.snapshot(START)}


def test_a_bucket_is_looked_up_once_and_kept():
    engine, client = engine_and_client()
    client.use("etl", START)
    bucket = client.bucket("produce", START)
    client.use("etl", START)
    assert client.bucket("produce", START) is bucket
    assert client.bucket("fetch", START) is not bucket
    assert connections(engine) == {("produce", "etl"): 1, ("fetch", "etl"): 1}
    assert (client.user, client.client_id) == (ANONYMOUS, "etl")


@pytest.mark.parametrize("first", [None, ""])
def test_null_is_the_empty_name(first):
    _, client = engine_and_client()
    bucket = client.bucket("produce", START)
    client.use(first, START)
    assert client.bucket("produce", START) is bucket


def test_another_name_gives_the_buckets_back():
    engine, client = engine_and_client()
    client.use("etl", START)
    client.bucket("produce", START)
    client.use("other", START)
    assert connections(engine) == {("produce", "etl"): 0}
    client.bucket("produce", START)
    assert connections(engine) == {("produce", "etl"): 0, ("produce", "other"): 1}


def test_another_name_takes_no_use_along():
    _, client = engine_and_client()
    client.use("etl", START)
    client.bucket("produce", START).charge(9_000, START)
    client.use("other", START)
    assert client.bucket("produce", START).charge(9_000, START) == 0.0


def test_a_changed_configuration_is_followed_at_the_next_request_with_all_that_was_used():
    engine, client = engine_and_client()
    client.use("etl", START)
    client.bucket("produce", START).charge(9_000, START)
    quota = EntityQuota(ClientQuotaEntity(ANONYMOUS), {"producer_byte_rate": 1_000.0})
    engine.apply(QuotaSettings((quota,)), START)
    client.use("etl", START)
    bucket = client.bucket("produce", START)
    assert (bucket.resolution.tags.user, bucket.meter.tokens(START)) == (ANONYMOUS, 1_000.0)


def test_who_leaves_holds_nothing():
    engine, client = engine_and_client()
    client.use("etl", START)
    client.bucket("produce", START)
    client.leave(START)
    client.leave(START)
    assert connections(engine) == {("produce", "etl"): 0}


def test_another_user_has_other_buckets_from_the_next_request_on():
    engine, client = engine_and_client()
    quota = EntityQuota(ClientQuotaEntity("alice"), {"producer_byte_rate": 1_000.0})
    engine.apply(QuotaSettings((quota,)), START)
    client.use("etl", START)
    client.hot_bucket = client.bucket("produce", START)
    client.identify("alice", START)
    assert client.hot_bucket is None
    assert client.bucket("produce", START).resolution.tags.user == "alice"


def test_who_authenticates_as_the_same_user_again_keeps_the_buckets():
    _, client = engine_and_client()
    client.identify("alice", START)
    client.hot_bucket = bucket = client.bucket("produce", START)
    client.identify("alice", START)
    assert client.hot_bucket is bucket
    assert client.bucket("produce", START) is bucket
