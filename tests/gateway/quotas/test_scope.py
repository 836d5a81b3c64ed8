"""`quotas.scope: broker`: each broker has buckets of its own."""

from dataclasses import replace

import pytest

from gateway.proxy.identity import Client
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import BOOTSTRAP, DEFAULT, OTHER, ClientQuotaEntity, EntityQuota, Tags
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.kinds import BYTES, CLIENT_KINDS, KINDS
from gateway.quotas.labels import STEP_BUCKETS
from gateway.quotas.recent_use import entity_uses, restore_entity
from gateway.quotas.scope import buckets_of, node_id, overflow_tags
from gateway.quotas.usage_rows import usage_row
from gateway.steps import at_once
from tests.gateway.quotas.engines import bucket_of, rows_of
from tests.gateway.quotas.grouped import grouped

START = 5_000.0
BURST = 10
"""Seconds of a quota that may be used at once."""
KINDS_OF_CLIENTS = [KINDS[name] for name in CLIENT_KINDS]
LIMITS = {kind.config_key: 1_000 if kind.unit == BYTES else 5 for kind in KINDS_OF_CLIENTS}
ALICE = EntityQuota(ClientQuotaEntity("alice"), LIMITS)
EVERYONE = EntityQuota(ClientQuotaEntity(DEFAULT), {"producer_byte_rate": 1_000})
ADDRESS = EntityQuota(ClientQuotaEntity(ip="10.0.0.7"), {"connection_creation_rate": 5})
JOBS = Group("jobs", (GroupRule(client_id="job-*"),), {"producer_byte_rate": 2_000})


def settings(*rows, by_broker=True, groups=(), **rest):
    return grouped(groups, *rows, by_broker=by_broker, **rest)


def engine(*rows, **rest):
    return QuotaEngine(settings(*rows, **rest), START)


def path(subject, broker, kind="produce", user="alice", client_id="app"):
    return subject.acquire_path(kind, user, client_id, START, broker=broker)


def tags(subject):
    return {bucket.resolution.tags for bucket in subject.buckets()}


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS_OF_CLIENTS if kind.at_each_broker])
def test_each_broker_has_its_own_bucket(kind):
    subject = engine(ALICE)
    (one,), (two,) = path(subject, 1, kind), path(subject, 2, kind)
    assert one.resolution.tags == Tags("alice", None, broker=1)
    assert one.charge(30_000, START)[1]
    assert two.charge(1, START) == (0.0, False)


def test_connections_to_one_broker_share_its_bucket():
    subject = engine(ALICE)
    assert path(subject, 1) == path(subject, 1)


def test_bootstrap_connections_have_their_own_bucket():
    subject = engine(ALICE)
    (bucket,) = path(subject, BOOTSTRAP)
    assert bucket.resolution.tags.broker == BOOTSTRAP
    assert usage_row(bucket, START).broker == "bootstrap"


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS_OF_CLIENTS if not kind.at_each_broker])
def test_all_brokers_share_a_kind_of_the_controller(kind):
    subject = engine(ALICE)
    assert path(subject, 1, kind) == path(subject, 2, kind)


def test_all_brokers_share_a_groups_ceiling():
    subject = engine(ALICE, groups=(JOBS,))
    one, two = path(subject, 1, client_id="job-1"), path(subject, 2, client_id="job-1")
    assert one[0] is not two[0]
    assert one[1] is two[1]
    assert one[1].resolution.tags == Tags(None, None, group="jobs")


def test_connection_rates_of_an_address_hold_at_each_broker():
    subject = engine(ADDRESS)
    one, two = (subject.acquire_ip("connection", "10.0.0.7", START, broker) for broker in (1, 2))
    assert (one.resolution.tags.broker, two.resolution.tags.broker) == (1, 2)


def test_connection_rates_of_a_user_hold_at_each_broker():
    subject = engine(EntityQuota(ClientQuotaEntity("alice"), {"connection_creation_rate": 5}))
    one, two = (subject.acquire_user("connection", "alice", START, broker) for broker in (1, 2))
    assert (one.resolution.tags.broker, two.resolution.tags.broker) == (1, 2)


def test_scope_cluster_ignores_the_broker():
    subject = engine(ALICE, by_broker=False)
    assert path(subject, 1) == path(subject, 2)
    assert tags(subject) == {Tags("alice", None)}


def test_changed_limit_reaches_the_buckets_of_all_brokers():
    subject = engine(ALICE)
    buckets = [path(subject, broker)[0] for broker in (1, 2)]
    subject.apply(settings(replace(ALICE, limits={"producer_byte_rate": 7})), START)
    assert [bucket.resolution.limit for bucket in buckets] == [7, 7]
    assert [bucket.resolution.tags.broker for bucket in buckets] == [1, 2]


def test_changed_default_keeps_the_broker_of_a_bucket():
    subject = engine(EVERYONE)
    (bucket,) = path(subject, 3)
    subject.apply(settings(replace(EVERYONE, limits={"producer_byte_rate": 7})), START)
    assert (bucket.resolution.limit, bucket.resolution.tags) == (7, Tags("alice", None, broker=3))


def test_crowded_engine_shares_one_bucket_for_each_broker():
    subject = QuotaEngine(settings(EVERYONE), START, max_buckets=1)
    path(subject, 1, user="first")
    overflow = {broker: path(subject, broker, user="second")[0] for broker in (1, 2)}
    assert [bucket.resolution.tags.overflow for bucket in overflow.values()] == [True, True]
    assert overflow[1] is not overflow[2]
    assert path(subject, 2, user="third")[0] is overflow[2]


def connection(subject, broker):
    client = Client(subject)
    client.broker = broker
    client.identify("alice", START)
    client.use("app", START)
    return client


@pytest.mark.parametrize("by_broker", [True, False])
def test_changed_scope_replaces_buckets_and_keeps_recent_use(by_broker):
    subject = engine(ALICE, by_broker=not by_broker)
    client = connection(subject, 1)
    client.bucket("produce", START).charge(BURST * 1_000 + 500, START)
    subject.tick(START + 1)
    subject.apply(settings(ALICE, by_broker=by_broker), START + 1)
    assert tags(subject) == set()
    client.use("app", START + 1)
    bucket = client.bucket("produce", START + 1)
    assert bucket.resolution.tags == Tags("alice", None, broker=1 if by_broker else None)
    assert bucket.meter.tokens(START + 1) == pytest.approx(0)  # no new burst, and no debt


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("configured", [False, True])
def test_changed_scope_within_a_tick_counts_nothing_twice(steps, configured):
    """The counters of `<other>` do not fall later, and no bucket of the old scope keeps a label."""
    names = [f"user-{number}" for number in range(3 * STEP_BUCKETS)]
    rows = [EntityQuota(ClientQuotaEntity(name), LIMITS) for name in names] if configured else [EVERYONE]
    subject = QuotaEngine(settings(*rows, by_broker=False), START, max_labelled=STEP_BUCKETS)
    for name in names:
        path(subject, 1, user=name)[0].charge(100, START)
    subject.tick(START + 1.0)
    found = []
    ticking = subject.tick_in_steps(START + 2.0)
    for _ in range(steps):
        next(ticking)
    subject.apply(settings(*rows), START + 2.0)
    at_once(ticking)
    for second in (2.5, 3.5):
        (other,) = [row for row in rows_of(subject, START + second) if row.user == OTHER]
        found.append(other.amount_total)
        subject.tick(START + second)
    assert found == [100 * 2 * STEP_BUCKETS] * 2
    assert [row.user for row in rows_of(subject, START + 5.0)] == [OTHER]


def test_changed_scope_within_a_tick_drops_idle_buckets_once():
    subject = engine(EVERYONE, by_broker=False)
    for number in range(2 * STEP_BUCKETS):
        (bucket,) = path(subject, 1, user=f"user-{number}")
        subject.release(bucket, START)
    ticking = subject.tick_in_steps(START + 4_000.0)
    next(ticking)
    subject.apply(settings(EVERYONE), START + 4_000.0)
    at_once(ticking)
    assert tags(subject) == set()


def test_changed_scope_keeps_buckets_of_all_brokers():
    subject = engine(ALICE, groups=(JOBS,), by_broker=False)
    kept = {path(subject, 1, client_id="job-1")[1], path(subject, 1, "controller_mutation")[0]}
    subject.apply(settings(ALICE, groups=(JOBS,)), START)
    assert set(subject.buckets()) == kept


@pytest.mark.parametrize(
    ("by_broker", "kind", "name", "charged"),
    [
        (True, "produce", Tags("alice", None, broker=1), True),
        (True, "produce", Tags("alice", None), False),  # the peer has another scope
        (False, "produce", Tags("alice", None, broker=1), False),
        (True, "controller_mutation", Tags("alice", None), True),
        (True, "controller_mutation", Tags("alice", None, broker=1), False),
        (True, "produce", Tags(None, None, group="jobs"), True),
        (True, "produce", Tags(None, None, group="jobs", broker=1), False),
        (False, "produce", Tags("alice", None, group="jobs"), False),  # no client has a bucket of these tags
        (False, "connection", Tags("alice", None, ip="10.0.0.7"), False),
        (False, "connection", Tags(None, None, ip="10.0.0.7", group="jobs"), False),
        (False, "connection", Tags(None, None, ip="10.0.0.7"), True),
    ],
)
def test_use_of_a_peer_is_charged_in_the_same_scope_only(by_broker, kind, name, charged):
    subject = engine(ALICE, ADDRESS, groups=(JOBS,), by_broker=by_broker)
    account = subject.peer_account(kind, name, START)
    assert (account is not None) is charged
    assert tags(subject) == ({name} if charged else set())


def test_recent_use_returns_to_the_bucket_of_its_broker():
    before = engine(ALICE)
    path(before, 2)[0].charge(4_000, START)
    (saved,) = entity_uses(before, before.buckets(), START)
    after = engine(ALICE)
    assert restore_entity(after, saved, START)
    assert path(after, 2)[0].meter.tokens(START) == pytest.approx((BURST * 1_000) - 4_000)
    assert path(after, 1)[0].meter.tokens(START) == pytest.approx(BURST * 1_000)


@pytest.mark.parametrize(("text", "broker"), [("-1", BOOTSTRAP), ("3", 3), ("+3", None), ("", None)])
def test_broker_of_a_message_is_a_node_id_or_bootstrap(text, broker):
    assert node_id(text) == broker


def test_changed_quota_reaches_the_shared_bucket_of_its_entity():
    entity = ClientQuotaEntity("alice")
    engine = QuotaEngine(settings(), START)
    shared, own, other = (bucket_of(engine, "produce", "", name, START) for name in "abc")
    buckets = {overflow_tags(entity): shared, entity.tags: own, overflow_tags(ClientQuotaEntity("bob")): other}
    assert list(buckets_of(buckets, {entity}, by_broker=False)) == [own, shared]
