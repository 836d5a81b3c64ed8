"""All throttle decisions of an interval become one event with their totals."""

import pytest

from gateway.features.ledger.fold import MAX_FOLDS, ThrottleFolds
from gateway.proxy.wire import Origin
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.settings import QuotaSettings
from gateway.throttle_slots import throttle_slot
from protocol.api_keys import ApiKey
from tests.gateway.quotas.engines import bucket_of

NOW, WALL = 1_000.0, 1_767_225_600.0
HOME = Origin("10.0.0.1", 1)
ALICE = EntityQuota(ClientQuotaEntity("alice"), {"producer_byte_rate": 1_000})


@pytest.fixture
def bucket():
    return bucket_of(QuotaEngine(QuotaSettings((ALICE,)), NOW), "produce", "alice", "etl", NOW)


def test_decisions_of_an_interval_fold_into_one_event(bucket):
    folds = ThrottleFolds()
    bucket.charge(12_000, NOW)
    for seconds, address, delay in ((0.0, "10.0.0.1", 0.5), (1.0, "10.0.0.2", 2.0), (2.0, "10.0.0.1", 1.0)):
        folds.throttled(Origin(address, 1), ApiKey.PRODUCE, bucket, 100, (delay, True), NOW + seconds)
    (event,) = folds.take("weir-1", NOW + 10.0, WALL)
    assert (event.time_ms, event.last_ms) == (1_767_225_590_000, 1_767_225_592_000)
    assert (event.gateway, event.kind, event.user, event.client_id, event.quota) == (
        "weir-1",
        "produce",
        "alice",
        None,
        "user=alice",
    )
    assert (event.address, event.broker, event.api) == ("10.0.0.2", 1, "Produce")  # of the longest
    assert (event.count, event.amount, event.throttle_ms, event.throttle_max_ms) == (3, 300.0, 3_500, 2_000)
    assert event.throttle_slots == {throttle_slot(500): 1, throttle_slot(1_000): 1, throttle_slot(2_000): 1}
    assert (event.limit, event.rate) == (1_000, pytest.approx(1_200.0))
    assert event.enforced
    assert not list(folds.take("weir-1", NOW + 10.0, WALL))


def test_throttle_by_a_group_names_the_group():
    jobs = Group("jobs", (GroupRule(client_id="job-*"),), {"producer_byte_rate": 1_000})
    engine = QuotaEngine(QuotaSettings((jobs.quota,), groups=(jobs,)), NOW)
    _, bucket = engine.acquire_path("produce", "alice", "job-1", NOW)
    folds = ThrottleFolds()
    folds.throttled(HOME, ApiKey.PRODUCE, bucket, 100, bucket.charge(12_000, NOW), NOW)
    (event,) = folds.take("weir-1", NOW, WALL)
    assert (event.group, event.user, event.client_id, event.quota) == ("jobs", None, None, "group=jobs")
    assert (event.address, event.limit, event.throttle_ms) == ("10.0.0.1", 1_000, 2_000)


def test_throttle_at_one_broker_names_the_broker_of_its_quota(bucket):
    engine = QuotaEngine(QuotaSettings((ALICE,), by_broker=True), NOW)
    at_broker = engine.acquire_path("produce", "alice", "etl", NOW, broker=1)[0]
    folds = ThrottleFolds()
    for each in (bucket, at_broker):
        folds.throttled(HOME, ApiKey.PRODUCE, each, 100, (1.0, True), NOW)
    assert [(event.broker, event.quota) for event in folds.take("weir-1", NOW, WALL)] == [
        (1, "user=alice"),
        (1, "user=alice at broker 1"),
    ]


def test_api_broker_and_enforcement_separate_events(bucket):
    folds = ThrottleFolds()
    for origin, api, verdict in (
        (HOME, ApiKey.PRODUCE, (1.0, True)),
        (HOME, ApiKey.FETCH, (1.0, True)),
        (Origin("10.0.0.1", 2), ApiKey.PRODUCE, (1.0, True)),
        (HOME, ApiKey.PRODUCE, (1.0, False)),
    ):
        folds.throttled(origin, api, bucket, 1, verdict, NOW)
    events = list(folds.take("weir-1", NOW, WALL))
    assert [(event.api, event.broker, event.enforced, event.throttle_ms) for event in events] == [
        ("Produce", 1, True, 1_000),
        ("Fetch", 1, True, 1_000),
        ("Produce", 2, True, 1_000),
        ("Produce", 1, False, 1_000),
    ]


def test_early_request_is_counted_with_its_throttle(bucket):
    folds = ThrottleFolds()
    folds.throttled(HOME, ApiKey.PRODUCE, bucket, 1, (1.0, True), NOW)
    folds.early(HOME, bucket, 0.75, NOW + 0.25)
    folds.early(HOME, bucket, 0.25, NOW + 0.75)
    (event,) = folds.take("weir-1", NOW, WALL)
    assert (event.count, event.early_count, event.early_ms, event.early_max_ms) == (1, 2, 1_000, 750)


def test_early_request_after_flush_has_event_without_count(bucket):
    folds = ThrottleFolds()
    folds.early(HOME, bucket, 0.5, NOW)
    (event,) = folds.take("weir-1", NOW, WALL)
    assert (event.count, event.api, event.early_count, event.throttle_slots) == (0, None, 1, {})


def test_decisions_over_fold_limit_are_counted():
    engine = QuotaEngine(QuotaSettings(), NOW, max_buckets=MAX_FOLDS + 10)
    folds = ThrottleFolds()
    for name in map(str, range(MAX_FOLDS + 2)):
        folds.throttled(HOME, ApiKey.PRODUCE, bucket_of(engine, "produce", name, name, NOW), 1, (1.0, True), NOW)
    assert folds.dropped == 2
    assert len(list(folds.take("weir-1", NOW, WALL))) == MAX_FOLDS


def test_volume_delay_is_a_separate_kind(bucket):
    folds = ThrottleFolds()
    folds.throttled(HOME, ApiKey.PRODUCE, bucket, 100, (1.0, True), NOW)
    folds.delayed_for_volume(HOME, bucket, 700, 0.5, NOW + 1.0)
    folds.delayed_for_volume(HOME, bucket, 50, 0.25, NOW + 2.0)
    folds.early(HOME, bucket, 0.1, NOW + 2.5)
    own, volumes = folds.take("weir-1", NOW + 10.0, WALL)
    assert (own.kind, own.quota, own.count, own.throttle_ms) == ("produce", "user=alice", 1, 1_000)
    assert (volumes.kind, volumes.user, volumes.quota, volumes.limit, volumes.rate) == ("volume", "alice", None, None, None)
    assert (volumes.count, volumes.amount, volumes.throttle_ms, volumes.throttle_max_ms) == (2, 750, 750, 500)
    assert volumes.throttle_slots == {throttle_slot(500): 1, throttle_slot(250): 1}
    assert (volumes.address, volumes.broker, volumes.api, volumes.enforced) == ("10.0.0.1", 1, "Produce", True)
    assert (own.early_count, volumes.early_count) == (0, 1)
