import pytest

from gateway.proxy.identity import Client
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ANONYMOUS, DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.shadows import EngineWithShadows
from tests.gateway.proxy.transcript import START, limits
from tests.gateway.quotas.engines import rows_of


def engine_and_client():
    engine = QuotaEngine(limits(produce=1_000, fetch=1_000), START)
    return engine, Client(engine)


def connections(engine):
    return {(row.kind, row.client_id): row.connections for row in rows_of(engine, START)}


def test_bucket_is_looked_up_once():
    engine, client = engine_and_client()
    client.use("etl", START)
    bucket = client.bucket("produce", START)
    client.use("etl", START)
    assert client.bucket("produce", START) is bucket
    assert client.bucket("fetch", START) is not bucket
    assert connections(engine) == {("produce", "etl"): 1, ("fetch", "etl"): 1}
    assert (client.user, client.client_id) == (ANONYMOUS, "etl")


@pytest.mark.parametrize("first", [None, ""])
def test_null_client_id_uses_empty_names_bucket(first):
    _, client = engine_and_client()
    bucket = client.bucket("produce", START)
    client.use(first, START)
    assert client.bucket("produce", START) is bucket


def test_another_client_id_releases_buckets():
    engine, client = engine_and_client()
    client.use("etl", START)
    client.bucket("produce", START)
    client.use("other", START)
    assert connections(engine) == {("produce", "etl"): 0}
    client.bucket("produce", START)
    assert connections(engine) == {("produce", "etl"): 0, ("produce", "other"): 1}


def test_another_client_id_takes_no_use_along():
    _, client = engine_and_client()
    client.use("etl", START)
    client.bucket("produce", START).charge(9_000, START)
    client.use("other", START)
    assert client.bucket("produce", START).charge(9_000, START) == (0.0, False)


def test_changed_config_applies_to_next_request_with_use():
    engine, client = engine_and_client()
    client.use("etl", START)
    client.bucket("produce", START).charge(9_000, START)
    quota = EntityQuota(ClientQuotaEntity(ANONYMOUS), {"producer_byte_rate": 1_000.0})
    engine.apply(QuotaSettings((quota,)), START)
    client.use("etl", START)
    bucket = client.bucket("produce", START)
    assert (bucket.resolution.tags.user, bucket.meter.tokens(START)) == (ANONYMOUS, 1_000.0)


def test_leaving_client_holds_no_bucket():
    engine, client = engine_and_client()
    client.use("etl", START)
    client.bucket("produce", START)
    client.leave(START)
    client.leave(START)
    assert connections(engine) == {("produce", "etl"): 0}


def test_another_user_gets_other_buckets_at_next_request():
    engine, client = engine_and_client()
    quota = EntityQuota(ClientQuotaEntity("alice"), {"producer_byte_rate": 1_000.0})
    engine.apply(QuotaSettings((quota,)), START)
    client.use("etl", START)
    client.hot_buckets = client.buckets("produce", START)
    client.identify("alice", START)
    assert client.hot_buckets == ()
    assert client.bucket("produce", START).resolution.tags.user == "alice"


def test_same_user_keeps_its_buckets():
    _, client = engine_and_client()
    client.identify("alice", START)
    client.hot_buckets = buckets = client.buckets("produce", START)
    client.identify("alice", START)
    assert client.hot_buckets == client.buckets("produce", START) == buckets


def test_only_clients_with_a_quota_have_limited_buckets():
    engine, client = engine_and_client()
    assert client.limited_buckets("produce", START) == ()
    assert connections(engine) == {}
    client.use("etl", START)
    assert client.limited_buckets("produce", START) == client.buckets("produce", START)


def test_limited_buckets_follow_a_changed_config():
    engine, client = engine_and_client()
    client.use("etl", START)
    client.limited_buckets("produce", START)
    engine.apply(limits(fetch=1_000), START)
    client.use("etl", START)
    assert client.limited_buckets("produce", START) == ()
    engine.apply(limits(produce=500), START)
    client.use("etl", START)
    (bucket,) = client.limited_buckets("produce", START)
    assert bucket.resolution.limit == 500
    assert connections(engine) == {("produce", "etl"): 1}


# Clients beyond `quotas.max_entities`.


def engine_with(places, *names):
    """An engine for so many buckets of a kind, and a connection of each of these client-ids."""
    quota = EntityQuota(ClientQuotaEntity(None, DEFAULT), {"producer_byte_rate": 1_000.0})
    engine = QuotaEngine(QuotaSettings((quota,)), START, max_buckets=places)
    return engine, [named(Client(engine), name) for name in names]


def named(client, name):
    client.use(name, START)
    client.bucket("produce", START)
    return client


def shares(client):
    return client.bucket("produce", START).resolution.tags.overflow


def leave(engine, client, now):
    """Let a client go, and the engine drop its bucket."""
    client.leave(START)
    engine.tick(now)


def test_client_leaves_the_shared_bucket_once_there_is_room():
    engine, (a, b, _, late) = engine_with(3, "a", "b", "c", "late")
    leave(engine, a, START + 1.0)  # the shared bucket has a place as well
    assert not late.find_room(START + 1.0)
    assert shares(late)
    leave(engine, b, START + 2.0)
    assert late.find_room(START + 2.0)
    assert not shares(late)
    assert engine.overflowed == 1


def test_client_leaves_its_owners_bucket_once_there_is_room():
    """One address takes three of four places. The last one is for others."""
    engine, _ = engine_with(4)
    clients = [Client(engine) for _ in range(5)]
    for number, client in enumerate(clients):
        client.ip = "10.0.0.2" if number == 4 else "10.0.0.1"
        named(client, f"client-{number}")
    assert [shares(client) for client in clients] == [False, False, False, True, False]
    late = clients[3]
    assert not late.find_room(START)
    for client in clients[:2]:
        leave(engine, client, START + 1.0)
    assert late.find_room(START + 2.0)
    assert not shares(late)


def test_client_with_its_own_bucket_looks_for_no_room():
    _, (client,) = engine_with(3, "a")
    bucket = client.bucket("produce", START)
    assert not client.find_room(START)
    assert client.bucket("produce", START) is bucket


def test_client_takes_the_use_of_the_shared_bucket_along():
    """Otherwise each client would get another burst."""
    engine, (a, b, late) = engine_with(2, "a", "b", "late")
    late.bucket("produce", START).charge(90_000, START)
    leave(engine, a, START + 1.0)
    leave(engine, b, START + 2.0)
    assert late.find_room(START + 2.0)
    assert late.bucket("produce", START + 2.0).meter.tokens(START + 2.0) == 0.0


def with_shadow_limits(places, *users):
    """An engine for so many buckets of a kind, whose users have only shadow limits, and a connection of each user."""
    quota = EntityQuota(ClientQuotaEntity(DEFAULT), shadow={"producer_byte_rate": 1_000.0})
    engine = EngineWithShadows(QuotaSettings((quota,)), START, max_buckets=places)
    clients = [Client(engine) for _ in users]
    for client, user in zip(clients, users, strict=True):
        client.identify(user, START)
        client.buckets("produce", START)
    return engine, clients


def shares_shadow(client):
    return client.buckets("produce", START)[-1].resolution.tags.overflow


def test_client_leaves_a_shared_shadow_limit_once_there_is_room():
    engine, (a, b, late) = with_shadow_limits(2, "a", "b", "late")
    assert (shares_shadow(late), engine.overflowed) == (True, 1)
    leave(engine, a, START + 1.0)
    leave(engine, b, START + 2.0)
    assert late.find_room(START + 2.0)
    assert not shares_shadow(late)


def test_room_for_real_limits_is_no_room_for_shadow_limits():
    _, (_, _, late) = with_shadow_limits(2, "a", "b", "late")
    assert not late.find_room(START + 1.0)


def test_further_client_ids_of_a_connection_take_half_the_places():
    _, (maker,) = engine_with(6, "x0")
    assert [shares(named(maker, f"x{number}")) for number in range(1, 5)] == [False, False, True, True]
    assert not maker.find_room(START)


def test_first_client_ids_of_connections_take_all_places():
    _, clients = engine_with(4, "a", "b", "c", "d", "e")
    assert [shares(client) for client in clients] == [False, False, False, False, True]
