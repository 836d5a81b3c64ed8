"""The throttles by shadow limits, by minute."""

from dataclasses import replace

from gateway.events import ShadowSample, from_line, to_line
from gateway.features.ledger.shadow_sampler import ShadowSampler
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.shadows import EngineWithShadows
from gateway.steps import at_once

NOW = 1_000.0
MINUTE = 1_767_225_600.0
ALICE = EntityQuota(ClientQuotaEntity("alice"), {"producer_byte_rate": 900}, shadow={"producer_byte_rate": 100})


def test_throttles_of_a_minute_are_one_sample():
    engine = EngineWithShadows(QuotaSettings((ALICE,)), NOW)
    sampler = ShadowSampler(MINUTE + 5.0)
    _, bucket = engine.acquire_path("produce", "alice", "etl", NOW)
    for amount in (1_200, 50, 300):
        bucket.charge(amount, NOW)
    assert at_once(sampler.take("weir-1", engine.shadows.buckets(), MINUTE + 59.0)) == []
    (sample,) = at_once(sampler.take("weir-1", engine.shadows.buckets(), MINUTE + 60.5))
    assert sample == ShadowSample(
        time_ms=1_767_225_600_000,
        gateway="weir-1",
        kind="produce",
        user="alice",
        quota="user=alice",
        limit=100,
        amount=1_550.0,
        active_seconds=1,
        count=3,
        throttle_ms=5_500,
        throttle_max_ms=3_000,
    )
    assert from_line(to_line(sample)) == sample
    assert at_once(sampler.take("weir-1", engine.shadows.buckets(), MINUTE + 120.5)) == []
    bucket.charge(10, NOW + 100.0)
    (sample,) = at_once(sampler.take("weir-1", engine.shadows.buckets(), MINUTE + 180.5))
    assert (sample.amount, sample.count, sample.throttle_ms, sample.throttle_max_ms) == (10.0, 0, 0, 0)


def test_longest_throttle_survives_samples_that_are_given_up():
    """The gateway stops while the buckets are read. The throttles before and after count."""
    engine = EngineWithShadows(QuotaSettings((ALICE, replace(ALICE, entity=ClientQuotaEntity("bob")))), NOW)
    sampler = ShadowSampler(MINUTE)
    for user in ("alice", "bob"):
        engine.acquire_path("produce", user, "etl", NOW)[1].charge(1_200, NOW)
    steps = sampler.take("weir-1", engine.shadows.buckets(), MINUTE + 60.0)
    next(steps)
    next(steps)
    steps.close()
    engine.acquire_path("produce", "alice", "etl", NOW)[1].charge(50, NOW)
    samples = at_once(sampler.take("weir-1", engine.shadows.buckets(), MINUTE + 60.0, last=True))
    assert [(each.user, each.throttle_max_ms) for each in samples] == [("alice", 2_000), ("bob", 2_000)]
    for user in ("alice", "bob"):
        engine.acquire_path("produce", user, "etl", NOW + 100.0)[1].charge(1_100, NOW + 100.0)
    samples = at_once(sampler.take("weir-1", engine.shadows.buckets(), MINUTE + 120.0, last=True))
    assert [(each.user, each.throttle_max_ms) for each in samples] == [("alice", 1_000), ("bob", 1_000)]


def test_dropped_shadow_is_sampled_once():
    sampler = ShadowSampler(MINUTE)
    engine = EngineWithShadows(QuotaSettings((ALICE,)), NOW, on_shadow_forgotten=sampler.forgotten)
    for bucket in engine.acquire_path("produce", "alice", "etl", NOW):
        bucket.charge(1_200, NOW)
        engine.release(bucket, NOW)
    engine.tick(NOW)
    engine.tick(NOW + 10_000.0)
    assert list(engine.shadows.buckets()) == []
    (sample,) = at_once(sampler.take("weir-1", engine.shadows.buckets(), MINUTE + 60.0))
    assert (sample.amount, sample.count) == (1_200.0, 1)
    assert at_once(sampler.take("weir-1", engine.shadows.buckets(), MINUTE + 120.0)) == []


def test_shadow_that_is_dropped_and_made_again_has_one_sample():
    sampler = ShadowSampler(MINUTE)
    engine = EngineWithShadows(QuotaSettings((ALICE,)), NOW, max_buckets=1, on_shadow_forgotten=sampler.forgotten)
    for second, amount in ((0.0, 1_300), (50.0, 1_200), (100.0, 50)):
        for bucket in engine.acquire_path("produce", "alice", "etl", NOW + second):
            bucket.charge(amount, NOW + second)
            engine.release(bucket, NOW + second)
        engine.tick(NOW + second)
        engine.tick(NOW + second + 40.0)
    assert list(engine.shadows.buckets()) == []
    (sample,) = at_once(sampler.take("weir-1", engine.shadows.buckets(), MINUTE + 60.0))
    assert (sample.amount, sample.count, sample.throttle_ms, sample.throttle_max_ms) == (2_550.0, 2, 5_000, 3_000)
    assert at_once(sampler.take("weir-1", engine.shadows.buckets(), MINUTE + 120.0)) == []
