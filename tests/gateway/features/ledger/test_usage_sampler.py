"""The use of each bucket by minute."""

import pytest

from gateway.features.ledger import minute_sampler
from gateway.features.ledger.usage_sampler import UsageSampler
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from gateway.steps import at_once
from tests.gateway.quotas.engines import bucket_of

NOW = 1_000.0
MINUTE = 1_767_225_600.0
ALICE = EntityQuota(ClientQuotaEntity("alice"), {"producer_byte_rate": 1_000})


def test_usage_is_sampled_when_its_minute_ends():
    engine = QuotaEngine(QuotaSettings((ALICE,)), NOW)
    sampler = UsageSampler(MINUTE + 5.0)
    bucket = bucket_of(engine, "produce", "alice", "etl", NOW)
    bucket_of(engine, "fetch", "alice", "idle", NOW)
    bucket.charge(500, NOW)
    bucket.answered_total, bucket.latency_seconds_total = 2, 0.25
    assert at_once(sampler.take("weir-1", engine.buckets(), MINUTE + 59.0)) == []
    bucket.charge(100, NOW)
    (sample,) = at_once(sampler.take("weir-1", engine.buckets(), MINUTE + 60.5))
    assert (sample.time_ms, sample.kind, sample.user, sample.client_id) == (1_767_225_600_000, "produce", "alice", None)
    assert (sample.amount, sample.requests, sample.latency_ms, sample.limit) == (600.0, 2, 250.0, 1_000)
    bucket.charge(7, NOW)
    (sample,) = at_once(sampler.take("weir-1", engine.buckets(), MINUTE + 120.0))
    assert (sample.time_ms, sample.amount, sample.requests, sample.latency_ms) == (1_767_225_660_000, 7.0, 0, None)
    assert at_once(sampler.take("weir-1", engine.buckets(), MINUTE + 180.0)) == []


def test_each_broker_has_its_own_sample():
    engine = QuotaEngine(QuotaSettings((ALICE,), by_broker=True), NOW)
    sampler = UsageSampler(MINUTE)
    for broker, size in ((1, 500), (2, 70)):
        engine.acquire_path("produce", "alice", "etl", NOW, broker=broker)[0].charge(size, NOW)
    samples = at_once(sampler.take("weir-1", engine.buckets(), MINUTE + 60.0))
    assert [(each.user, each.quota, each.amount, each.limit) for each in samples] == [
        ("alice", "user=alice at broker 1", 500.0, 1_000),
        ("alice", "user=alice at broker 2", 70.0, 1_000),
    ]


def test_seconds_with_use_or_throttle_are_counted():
    """The throttle of 3 s begins with the use of 4 seconds' quota. The next use in this minute is late."""
    engine = QuotaEngine(QuotaSettings((ALICE,)), NOW)
    sampler = UsageSampler(MINUTE)
    bucket = bucket_of(engine, "produce", "alice", "etl", NOW)
    for amount, at in ((bucket.capacity() + 3_000, NOW), (10, NOW + 30.0)):
        bucket.charge(int(amount), at)
        for second in range(1, 20):
            engine.tick(at + second - 0.5)
    (sample,) = at_once(sampler.take("weir-1", engine.buckets(), MINUTE + 60.0))
    assert sample.active_seconds == 3 + 1
    bucket.charge(1, NOW + 60.0)
    (sample,) = at_once(sampler.take("weir-1", engine.buckets(), MINUTE + 120.0))
    assert sample.active_seconds == 1, "the tick after the use is still to come"


def test_samples_that_are_given_up_lose_nothing():
    """The gateway stops while the buckets are read, and a bucket has gone before."""
    engine = QuotaEngine(QuotaSettings((ALICE,)), NOW)
    sampler = UsageSampler(MINUTE)
    stays, gone = (bucket_of(engine, "produce", "alice" if name == "stays" else "bob", name, NOW) for name in ("stays", "gone"))
    stays.charge(500, NOW)
    gone.charge(70, NOW)
    sampler.forgotten(gone)
    steps = sampler.take("weir-1", [stays], MINUTE + 60.0)
    next(steps)
    next(steps)
    steps.close()
    samples = at_once(sampler.take("weir-1", [stays], MINUTE + 60.0, last=True))
    assert [(each.time_ms, each.amount) for each in samples] == [(1_767_225_600_000, 500.0), (1_767_225_600_000, 70.0)]


def test_running_minute_is_sampled_at_exit():
    engine = QuotaEngine(QuotaSettings((ALICE,)), NOW)
    sampler = UsageSampler(MINUTE + 5.0)
    bucket_of(engine, "produce", "alice", "etl", NOW).charge(500, NOW)
    (sample,) = at_once(sampler.take("weir-1", engine.buckets(), MINUTE + 7.0, last=True))
    assert (sample.time_ms, sample.amount) == (1_767_225_600_000, 500.0)


@pytest.mark.parametrize(
    ("looks", "partial"),
    [
        ([60.5, 120.0, 180.0], [True, None, None]),
        ([60.5, 59.0, 60.0, 120.0], [True, True, True, None]),
        ([60.0, 3_600.0, 3_660.0], [True, True, True]),
    ],
)
def test_minute_of_a_start_or_a_set_clock_is_partial(looks, partial):
    """The clock is right in the first case, set back in the second, and set forward in the last."""
    engine = QuotaEngine(QuotaSettings((ALICE,)), NOW)
    sampler = UsageSampler(MINUTE + 5.0)
    bucket = bucket_of(engine, "produce", "alice", "etl", NOW)
    found = []
    for seconds in looks:
        bucket.charge(500, NOW)
        found += at_once(sampler.take("weir-1", engine.buckets(), MINUTE + seconds))
    assert [sample.partial for sample in found] == partial


def test_only_a_last_minute_that_is_over_is_whole():
    engine = QuotaEngine(QuotaSettings((ALICE,)), NOW)
    partial = []
    for end in (119.0, 120.0):
        sampler = UsageSampler(MINUTE)
        bucket = bucket_of(engine, "produce", "alice", "etl", NOW)
        for seconds in (60.0, end):
            bucket.charge(500, NOW)
            samples = at_once(sampler.take("weir-1", engine.buckets(), MINUTE + seconds, last=seconds == end))
        partial += [sample.partial for sample in samples]
    assert partial == [True, None]


def test_bucket_dropped_within_its_minute_is_sampled():
    sampler = UsageSampler(MINUTE)
    engine = QuotaEngine(QuotaSettings((ALICE,)), NOW, max_buckets=1, on_forgotten=sampler.forgotten)
    amounts = []
    for minute, amount in ((1, 500), (2, 0), (3, 7)):
        bucket = bucket_of(engine, "produce", "alice", "etl", NOW)
        bucket.charge(amount, NOW)
        engine.release(bucket, NOW)
        for seconds in (100.0, 200.0):
            engine.tick(NOW + seconds)
        assert list(engine.buckets()) == []
        amounts.append([sample.amount for sample in at_once(sampler.take("weir-1", engine.buckets(), MINUTE + 60.0 * minute))])
    assert amounts == [[500.0], [], [7.0]]


EVERYONE = EntityQuota(ClientQuotaEntity(DEFAULT), {"producer_byte_rate": 1_000})


def crowded(sampler, *rows):
    """An engine that drops each idle bucket after a second."""
    return QuotaEngine(QuotaSettings(rows or (EVERYONE,)), NOW, max_buckets=1, on_forgotten=sampler.forgotten)


def visit(engine, user, amount, now):
    """Let a client use its quota and leave. Unless others are there, the next tick after this second drops its bucket."""
    bucket = bucket_of(engine, "produce", user, "etl", now)
    bucket.charge(amount, now)
    bucket.answered_total, bucket.latency_seconds_total = 2, 0.25
    engine.release(bucket, now)
    engine.tick(now)


def samples_of(sampler, engine, minute, **rest):
    """The users, amounts and active seconds of a minute."""
    samples = at_once(sampler.take("weir-1", engine.buckets(), MINUTE + 60.0 * minute, **rest))
    return [(each.user, each.amount, each.active_seconds) for each in samples]


@pytest.mark.parametrize("visits", [1, 2, 20])
@pytest.mark.parametrize("stays", [False, True])
def test_client_that_is_dropped_and_returns_has_one_sample(visits, stays):
    sampler = UsageSampler(MINUTE)
    engine = crowded(sampler)
    for number in range(visits):
        visit(engine, "alice", 100, NOW + 2.0 * number)
        engine.tick(NOW + 2.0 * number + 1.0)
    assert list(engine.buckets()) == []
    if stays:
        visit(engine, "alice", 7, NOW + 50.0)
    samples = at_once(sampler.take("weir-1", engine.buckets(), MINUTE + 60.0))
    visits += stays
    assert [(each.user, each.amount, each.requests, each.latency_ms, each.active_seconds) for each in samples] == [
        ("alice", 100.0 * (visits - stays) + 7.0 * stays, 2 * visits, 250.0 * visits, visits)
    ]
    assert samples_of(sampler, engine, 2) == []


def test_sample_of_two_buckets_has_the_latest_limit():
    """As if the first bucket had stayed."""
    sampler = UsageSampler(MINUTE)
    engine = crowded(sampler)
    visit(engine, "alice", 100, NOW)
    engine.tick(NOW + 1.0)
    engine.apply(QuotaSettings((ALICE, EVERYONE)), NOW + 1.0)
    visit(engine, "alice", 100, NOW + 2.0)
    (sample,) = at_once(sampler.take("weir-1", engine.buckets(), MINUTE + 60.0))
    assert (sample.amount, sample.quota, sample.limit) == (200.0, "user=alice", 1_000)


def test_bound_of_a_minute_counts_entities(monkeypatch):
    monkeypatch.setattr(minute_sampler, "MAX_SAMPLES", 2)
    sampler = UsageSampler(MINUTE)
    engine = crowded(sampler)
    for number in range(9):
        visit(engine, "alice" if number % 2 else "bob", 10, NOW + 2.0 * number)
        engine.tick(NOW + 2.0 * number + 1.0)
    assert sampler.dropped == 0
    visit(engine, "carol", 10, NOW + 50.0)
    engine.tick(NOW + 51.0)
    assert sampler.dropped == 1
    assert samples_of(sampler, engine, 1) == [("bob", 50.0, 5), ("alice", 40.0, 4)]
    assert sampler.dropped == 1


@pytest.mark.parametrize("read", [0, 1, 2])
@pytest.mark.parametrize("given_up", [False, True])
def test_bucket_dropped_while_buckets_are_read_counts_once(read, given_up):
    """Use after its bucket is read counts for the next minute."""
    sampler = UsageSampler(MINUTE)
    engine = QuotaEngine(QuotaSettings((EVERYONE,)), NOW, max_buckets=2, on_forgotten=sampler.forgotten)
    for user in ("alice", "bob"):
        visit(engine, user, 100, NOW)
    steps = sampler.take("weir-1", engine.buckets(), MINUTE + 60.0)
    for _ in range(read):
        next(steps)
    visit(engine, "alice", 7, NOW + 1.0)
    engine.tick(NOW + 200.0)
    assert list(engine.buckets()) == []
    late = 7.0 if read and not given_up else 0.0
    if given_up:
        steps.close()
        first = samples_of(sampler, engine, 1, last=True)
    else:
        first = [(each.user, each.amount, each.active_seconds) for each in at_once(steps)]
    assert sum(amount for _, amount, _ in first) == 207.0 - late
    assert [amount for _, amount, _ in samples_of(sampler, engine, 2)] == [late] * (late > 0)


def test_address_bucket_is_sampled_by_ip():
    engine = QuotaEngine(QuotaSettings((EntityQuota(ClientQuotaEntity(ip=DEFAULT), {"connection_creation_rate": 5}),)), NOW)
    sampler = UsageSampler(MINUTE)
    for number in (1, 2):
        bucket = engine.acquire_ip("connection", f"10.0.0.{number}", NOW)
        assert bucket is not None
        bucket.charge_connection(1.0, NOW)
    samples = at_once(sampler.take("weir-1", engine.buckets(), MINUTE + 60.0))
    assert [(sample.ip, sample.user, sample.client_id, sample.amount) for sample in samples] == [
        ("10.0.0.1", None, None, 1.0),
        ("10.0.0.2", None, None, 1.0),
    ]
