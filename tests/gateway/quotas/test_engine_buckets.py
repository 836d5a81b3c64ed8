"""The buckets that an engine keeps: shared by many clients, named by peers, dropped, and shown in rows."""

from dataclasses import astuple
from itertools import groupby
from math import isfinite

import pytest

from gateway.quotas.debts import ClearedDebt, DebtFilter, clear_debts
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, OTHER, ClientQuotaEntity, EntityQuota, Tags
from gateway.quotas.group_meter import GroupMeter
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.kind_buckets import BUCKET_IDLE_SECONDS
from gateway.quotas.kinds import KINDS
from gateway.quotas.labels import STEP_BUCKETS
from gateway.quotas.line import Consumer
from gateway.quotas.meter import Window, throttle_time_ms
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.shadows import EngineWithShadows
from gateway.quotas.shared_meter import Part
from gateway.quotas.usage_rows import usage_row
from protocol.throttle import MAX_THROTTLE_MS
from tests.gateway.quotas.engines import bucket_of, rows_of
from tests.gateway.quotas.grouped import grouped

START = 1_000.0
WINDOW = Window(3, 1.0)


def settings(limit=1_000.0, *rows, **rest):
    default = EntityQuota(ClientQuotaEntity(None, DEFAULT), {"producer_byte_rate": limit})
    return QuotaSettings((default, *rows), window=WINDOW, **rest)


def engine(*, limit=1_000.0, clients=(), **rest):
    found = QuotaEngine(settings(limit), START, **rest)
    for name in clients:
        bucket_of(found, "produce", "", name, START)
    return found


def shadow_engine(clients):
    row = EntityQuota(ClientQuotaEntity(None, DEFAULT), shadow={"producer_byte_rate": 1_000.0})
    found = EngineWithShadows(QuotaSettings((row,), window=WINDOW), START)
    for name in clients:
        found.acquire_path("produce", "", name, START)
    return found.shadows


def tree(ceiling):
    limits = {} if ceiling is None else {"producer_byte_rate": ceiling}
    groups = (Group("all", (), limits), Group("jobs", (GroupRule(client_id="job-*"),), parent="all"))
    return grouped(groups, window=WINDOW)


def test_internal_bucket_belongs_to_nobody():
    internal = engine().internal
    assert (internal.resolution.tags, internal.charge(10**9, START)) == (Tags(None, None), (0.0, False))
    assert usage_row(internal, START).client_id == ""


def test_accounts_are_those_of_single_entities():
    subject = engine(clients=("a", "b"), max_buckets=1)
    assert [key for key, _ in subject.accounts()] == [("produce", Tags(None, "a"))]
    for bucket in subject.buckets():
        bucket.charge(10, START)
    assert [found[0] for found in subject.changed() if found is not None] == [("produce", Tags(None, "a"))]


@pytest.mark.parametrize("used", [False, True])
def test_changed_accounts_are_found_in_steps(used):
    names = [f"client-{number}" for number in range(10 * STEP_BUCKETS)]
    for subject in (engine(clients=names), shadow_engine(clients=names)):
        for bucket in subject.buckets():
            bucket.charge(used, START)
        steps = [len(list(step)) for pause, step in groupby(subject.changed(), lambda found: found is None) if not pause]
        assert steps == [STEP_BUCKETS] * 10 * used
        assert list(subject.changed()).count(None) == 10


def test_peers_name_only_entities_with_a_quota_and_room():
    subject = engine(clients=("a",), max_buckets=2)
    assert subject.peer_account("produce", Tags(None, "b"), START).connections == 0
    assert subject.peer_account("produce", Tags(None, "c"), START) is None, "there is no room"
    for kind, tags in (
        ("produce", "topic"),
        ("produce", Tags(OTHER, OTHER, overflow=True)),
        ("unknown", Tags(None, "a")),
        ("fetch", Tags(None, "a")),
        ("produce", Tags(None, "a", broker=1)),
    ):
        assert subject.peer_account(kind, tags, START) is None
    assert len(list(subject.buckets())) == 2


def test_peer_finds_no_bucket_without_a_limit():
    subject = engine()
    bucket_of(subject, "fetch", "", "a", START)
    assert subject.peer_account("fetch", Tags(None, "a"), START) is None


def test_changed_default_reaches_all_its_buckets():
    subject = engine(clients=("a", "b"))
    subject.apply(settings(500.0), START)
    assert [bucket.resolution.limit for bucket in subject.buckets()] == [500.0, 500.0]
    subject.apply(settings(500.0, EntityQuota(ClientQuotaEntity(None, "b"), {"producer_byte_rate": 50.0})), START)
    assert [bucket.resolution.limit for bucket in subject.buckets()] == [500.0, 50.0]


def forgotten(subject, bucket):
    """Have the engine forget a bucket that is still referred to, as by a request without an answer."""
    subject.release(bucket, START)
    subject.tick(START + BUCKET_IDLE_SECONDS)
    assert bucket not in list(subject.buckets())
    return START + BUCKET_IDLE_SECONDS


def test_charge_to_a_forgotten_bucket_reaches_the_next_one():
    subject = engine()
    old = bucket_of(subject, "produce", "", "a", START)
    now = forgotten(subject, old)
    assert old.charge(5_000, now) == (3.0, True)
    old.record(1_000, now)
    new = bucket_of(subject, "produce", "", "a", now)
    assert (new.amount_total, new.meter.delay(now), new.connections) == (6_000, 4.0, 1)
    assert old.amount_total == 0, "it would count twice"


def test_answer_to_a_forgotten_bucket_reaches_the_next_one():
    subject = QuotaEngine(QuotaSettings((EntityQuota(ClientQuotaEntity(None, DEFAULT), {"consumer_byte_rate": 100.0}),)), START)
    old = bucket_of(subject, "fetch", "", "a", START)
    now = forgotten(subject, old)
    assert old.charge_fetch(Consumer(), 1_500, now) == (5.0, True)
    assert bucket_of(subject, "fetch", "", "a", now).amount_total == 1_500


def test_use_of_a_forgotten_bucket_without_a_limit_counts():
    subject = engine()
    old = bucket_of(subject, "fetch", "", "a", START)
    now = forgotten(subject, old)
    old.record(10, now)
    assert old.charge(10, now) == (0.0, False)
    assert bucket_of(subject, "fetch", "", "a", now).amount_total == 20


def test_charge_to_a_forgotten_bucket_follows_its_new_limit():
    subject = engine()
    old = bucket_of(subject, "produce", "", "a", START)
    now = forgotten(subject, old)
    subject.apply(settings(500.0), now)
    assert old.charge(5_000, now) == (8.0, True)


def test_client_without_a_slot_counts_once_among_the_others():
    subject = engine(clients=("a", "b"), max_labelled=1)
    for bucket in subject.buckets():
        bucket.charge(100, START)
    for second in (1.0, 2.0):
        subject.tick(START + second)
        rows = {row.client_id: row.amount_total for row in rows_of(subject, START + second)}
        assert rows == {"a": 100, OTHER: 100}


def test_row_of_the_others_is_that_of_the_last_tick():
    subject = engine(clients=("a", "b"), max_labelled=1)
    other = list(subject.buckets())[-1]
    found = []
    for second in (0.0, 1.0, 2.0):
        other.charge(10, START + second)
        found += [row.amount_total for row in rows_of(subject, START + second) if row.client_id == OTHER]
        subject.tick(START + second)
    assert found == [10, 10, 20]


def test_new_meter_of_a_group_has_this_gateways_share():
    subject = QuotaEngine(tree(1_000.0), START, shared=True)
    subject.meters.part = Part(0.5, 0.6)
    own, group = subject.acquire_path("produce", "", "job-1", START)
    assert (own.meter, group.meter.portion) == (None, 25.0)


def test_ceiling_that_comes_and_goes_changes_the_groups_meter():
    subject = QuotaEngine(tree(None), START)
    group = Tags(None, None, group="jobs")
    assert [bucket.resolution.tags for bucket in subject.acquire_path("produce", "", "job-1", START)] == [Tags(None, "job-1")]
    subject.apply(tree(1_000.0), START)
    bucket = subject.acquire_path("produce", "", "job-1", START)[1]
    assert (bucket.resolution.tags, bucket.resolution.limit, type(bucket.meter)) == (group, 1_000.0, GroupMeter)
    subject.apply(tree(None), START)
    assert (bucket.resolution.limit, bucket.meter) == (None, None)
    subject.apply(tree(2_000.0), START)
    assert (bucket.resolution.limit, type(bucket.meter)) == (2_000.0, GroupMeter)


def test_released_bucket_has_no_further_owner():
    subject = engine()
    bucket = bucket_of(subject, "produce", "", "a", START)
    subject.release(bucket, START + 5.0)
    assert (bucket.connections, bucket.last_used) == (0, START + 5.0)
    with pytest.raises(ValueError, match="released more often than acquired"):
        subject.release(bucket, START + 5.0)


def test_largest_cleared_debt_is_first():
    subject = engine(clients=("a", "b", "c"))
    for bucket, amount in zip(subject.buckets(), (3_000, 5_000, 2_000), strict=True):
        bucket.charge(amount, START)
    covered, cleared = clear_debts(subject.buckets(), DebtFilter(kind="produce"), START)
    assert len(covered) == 3
    assert cleared == [ClearedDebt("produce", "", "b", 3.0), ClearedDebt("produce", "", "a", 1.0)]
    assert [bucket.meter.tokens(START) for bucket in subject.buckets()] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "algorithm", "limit", "throttle_ms"),
    [
        ("produce", "token_bucket", 1e-300, 3_600_000),
        ("produce", "window", 1e-300, MAX_THROTTLE_MS),
        ("controller_mutation", "token_bucket", 5e-324, 3_600_000),
        ("controller_mutation", "token_bucket", 1e308, 0),
    ],
)
def test_extreme_limits_of_the_api_give_finite_figures(kind, algorithm, limit, throttle_ms):
    quotas = {ClientQuotaEntity("alice"): {KINDS[kind].config_key: limit}}
    bucket = bucket_of(QuotaEngine(QuotaSettings(dynamic=quotas, algorithm=algorithm), START), kind, "alice", "etl", START)
    bucket.record(1_000_000, START)
    assert throttle_time_ms(bucket.admit(START)[0]) == throttle_ms
    assert all(isfinite(value) for value in astuple(usage_row(bucket, START)) if isinstance(value, float))


def test_dropped_bucket_is_told_to_its_owner():
    dropped = []
    subject = engine(max_buckets=2, on_forgotten=dropped.append)
    bucket = bucket_of(subject, "produce", "", "a", START)
    subject.release(bucket, START)
    now = START + BUCKET_IDLE_SECONDS + WINDOW.length
    for _ in range(3):
        now += 1.0
        subject.tick(now)
    assert dropped == [bucket]


@pytest.mark.parametrize("grouped", [False, True])
def test_further_names_of_a_connection_take_half_of_the_places(grouped):
    groups = (Group("all", (GroupRule(),), {"producer_byte_rate": 9_000.0}),) if grouped else ()
    rows = tuple(group.quota for group in groups)
    subject = QuotaEngine(settings(1_000.0, *rows, groups=groups), START, max_buckets=10)

    def own(name, *, renamed):
        return not subject.acquire_path("produce", "", name, START, renamed=renamed)[0].resolution.tags.overflow

    assert all(own(name, renamed=False) for name in "abcde")
    assert not own("f", renamed=True)
    assert own("g", renamed=False)
