"""Recent use moves to a new engine: no use is lost or counted twice, and it expires as without a restart."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits, ConnectionQuotas
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota, Tags
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.meter import PastUse, Window
from gateway.quotas.rate import WindowMeter
from gateway.quotas.recent_use import (
    LONGEST_SECONDS,
    BucketUse,
    Moment,
    RecentUse,
    entity_uses,
    restore_entity,
    seconds_between,
)
from gateway.quotas.settings import Metering, QuotaSettings
from gateway.quotas.shared_meter import SharedMeter
from gateway.quotas.spread_rate import SpreadRate
from gateway.quotas.token_bucket import TokenBucket
from tests.gateway.quotas.engines import bucket_of, rows_of
from tests.gateway.quotas.grouped import grouped

START = 5_000.0
"""When the first gateway is asked."""

AGAIN = 70.25
"""What the clock of the second one shows in the moment in which the first one is saved."""

WINDOW = Window(samples=5, seconds=1.0)
ALICE = Tags("alice", None)
RATE = Metering("rate", WINDOW)


def settings(limit=100.0, algorithm="token_bucket", window=WINDOW, **rest):
    limits = {"producer_byte_rate": limit, "controller_mutation_rate": limit}
    quotas = (EntityQuota(ClientQuotaEntity("alice"), limits),)
    return QuotaSettings(quotas, algorithm=algorithm, window=window, metering={"controller_mutation": RATE}, **rest)


def engine(of, now=START):
    return QuotaEngine(of, now)


def used(subject, kind, *charges):
    """Alice's bucket after (seconds after the start, amount) ..."""
    bucket = bucket_of(subject, kind, "alice", "etl", START)
    for after, amount in charges:
        bucket.charge(amount, START + after)
    return bucket


def restarted(first, saved_after, seconds, of=None):
    """A second engine that restores the first one after `seconds`, and the time on the second engine's clock."""
    second = engine(of or first.settings, AGAIN)
    now = AGAIN + seconds
    for saved in entity_uses(first, first.buckets(), START + saved_after):
        restore_entity(second, BucketUse(saved.kind, saved.tags, saved.use.aged(seconds)), now)
    return second, now


# The time between.

HERE = Moment("boot", 100.0, 1_000_000.0)


@pytest.mark.parametrize(
    ("now", "seconds"),
    [
        # (boot, monotonic, wall) of the second gateway
        (("boot", 107.5, 1_000_007.0), 7.5),
        (("boot", 107.5, 5.0), 7.5),  # the wall clock was changed meanwhile, and is not used
        (("boot", 99.0, 1_000_007.0), 0.0),
        (("other", 3.0, 1_000_060.0), 60.0),
        (("other", 3.0, 999_990.0), 0.0),  # from the future: as if no time had passed
        (("other", 3.0, 1_000_000.0 + LONGEST_SECONDS), LONGEST_SECONDS),
        (("other", 3.0, 1_000_001.0 + LONGEST_SECONDS), None),
        (("other", 3.0, 999_999.0 - LONGEST_SECONDS), None),
        (("boot", 101.0 + LONGEST_SECONDS, 1_000_000.0), None),
        (("other", 3.0, float("nan")), None),
    ],
)
def test_age_of_save_uses_both_clocks(now, seconds):
    assert seconds_between(HERE, Moment(*now)) == seconds


def test_unnamed_boot_is_another_boot():
    assert seconds_between(replace(HERE, boot=""), Moment("", 107.5, 1_000_060.0)) == 60.0


# One meter after another.


@pytest.mark.parametrize(
    ("kind", "charges", "seconds", "delay", "then"),
    [
        # (seconds after the start, amount) ..., saved at 2 s; seconds until it is back, the delay then and after 100 more.
        # The bucket holds 400.
        ("token_bucket", [(2, 400)], 0, 0.0, 1.0),
        ("token_bucket", [(2, 1_000)], 0, 6.0, 7.0),
        ("token_bucket", [(0, 1_000)], 0, 4.0, 5.0),
        ("token_bucket", [(2, 1_000)], 4, 2.0, 3.0),
        ("token_bucket", [(2, 1_000)], 60, 0.0, 0.0),
        # The window covers 4 s at least, and forgets what was used 5 s ago.
        ("window", [(2, 400)], 0, 0.0, 1.0),
        ("window", [(2, 1_000)], 0, 6.0, 7.0),
        ("window", [(0, 1_000)], 2, 6.0, 7.0),
        ("window", [(0, 1_000)], 3, 0.0, 0.0),
        # The rate's window holds 500, filled from the past on.
        ("rate", [(2, 1_000)], 0, 5.0, 6.0),
        ("rate", [(2, 1_000)], 3, 2.0, 3.0),
        ("rate", [(2, 1_000)], 5, 0.0, 1.0),
        ("rate", [(2, 1_000)], 6, 0.0, 0.0),
    ],
)
def test_client_waits_as_long_after_restart(kind, charges, seconds, delay, then):
    algorithm, quota_kind = ("token_bucket", "controller_mutation") if kind == "rate" else (kind, "produce")
    first = engine(settings(algorithm=algorithm))
    used(first, quota_kind, *charges)
    second, now = restarted(first, 2, seconds)
    bucket = bucket_of(second, quota_kind, "alice", "etl", now)
    assert bucket.throttle_left(now) == pytest.approx(delay)
    assert bucket.charge(100, now)[0] == pytest.approx(then)


def meters(now):
    return [
        TokenBucket.for_bytes(100.0, WINDOW, now),
        WindowMeter(100.0, WINDOW),
        SpreadRate(100.0, WINDOW, now),
        SharedMeter(TokenBucket.for_bytes(100.0, WINDOW, now), 100.0),
        SharedMeter(WindowMeter(100.0, WINDOW), 100.0),
    ]


steps = st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 900)), max_size=20)
"""(ms since the last one, amount) ..."""


@settings_of_hypothesis(deadline=None)
@given(index=st.integers(0, 4), before=steps, pause=st.integers(0, 8_000), after=steps, shift=st.integers(-4_000, 4_000))
def test_restored_meter_decides_as_without_restart(index, before, pause, after, shift):
    """Each later charge gets the same delay as without a restart, for any clock of the second process."""
    first, second = meters(START)[index], meters(START)[index]
    now = START
    for ms, amount in before:
        now += ms / 1000.0
        first.charge(amount, now)
    spent = first.dump(now)
    pause_seconds = pause / 1000.0
    now += pause_seconds
    second.restore(
        [PastUse(each.began + pause_seconds, each.ended + pause_seconds, each.amount) for each in spent], now + shift
    )
    for ms, amount in after:
        now += ms / 1000.0
        assert second.charge(amount, now + shift) == pytest.approx(first.charge(amount, now), abs=1e-6)
    assert second.delay(now + shift) == pytest.approx(first.delay(now), abs=1e-6)
    assert second.idle(now + shift + 1_000.0)


@settings_of_hypothesis(max_examples=40, deadline=None)
@given(
    algorithm=st.sampled_from(["token_bucket", "window", "rate"]),
    restarts=st.sets(st.integers(1, 199), max_size=30),
    amount=st.integers(1, 600),
    limit=st.integers(20, 500),
)
def test_restarts_give_no_client_more(algorithm, restarts, amount, limit):
    """A client sends for twenty seconds, whenever it is not muted, and sometimes reconnects.

    If the gateway restarts at each of these moments, the client must not send more than without restarts.
    """
    of = settings(float(limit), algorithm=algorithm if algorithm != "rate" else "token_bucket")
    kind = "controller_mutation" if algorithm == "rate" else "produce"

    def sent(with_restarts):
        subject, total, free_at = engine(of, 0.0), 0, 0.0
        for tenth in range(200):
            now = tenth / 10
            if tenth in restarts:
                free_at = 0.0  # a new connection is not muted
                if with_restarts:
                    saved = list(entity_uses(subject, subject.buckets(), now))
                    subject = engine(of, now)
                    assert all(restore_entity(subject, each, now) for each in saved)
            bucket = bucket_of(subject, kind, "alice", "etl", now)
            if free_at <= now and bucket.throttle_left(now) == 0.0:
                free_at = now + bucket.charge(amount, now)[0]
                total += amount
        return total

    assert sent(with_restarts=True) <= sent(with_restarts=False)


def test_restored_samples_keep_their_ages():
    """The new samples begin at other moments: no use is lost, and use leaves the window at most one sample too late."""
    first = SpreadRate(100.0, WINDOW, START)
    first.charge(1_000, START + 0.9)
    for shift in (0.0, 0.25, 0.5, 0.75, 0.999):
        second = SpreadRate(100.0, WINDOW, AGAIN)
        second.restore(first.dump(START + 0.9), AGAIN + shift)
        assert second.tokens(AGAIN + shift) == pytest.approx(-500.0)
        assert not second.idle(AGAIN + shift + 8.5)  # it is idle after 9.1 s without a restart
        assert second.idle(AGAIN + shift + 10.1)


def test_presumed_use_is_not_saved():
    for inner in (TokenBucket.for_bytes(100.0, WINDOW, START), WindowMeter(100.0, WINDOW)):
        meter = SharedMeter(inner, 100.0, share=0.25, horizon=10.0)
        meter.charge(30, START)
        meter.charge_others(7, START)
        assert meter.presumed == 83.0, "the use of a peer replaces as much"
        assert sum(each.amount for each in meter.dump(START)) == pytest.approx(37.0)
        meter.restore(meter.dump(START), START)
        assert meter.presumed == 0.0
        assert sum(each.amount for each in meter.dump(START)) == pytest.approx(37.0)


# Saved and restored use.


def test_unused_buckets_are_not_saved():
    first = engine(settings())
    used(first, "produce", (0, 100))
    used(first, "fetch", (0, 100))  # without a quota
    bucket_of(first, "produce", "bob", "etl", START)
    assert [(use.kind, use.tags) for use in entity_uses(first, first.buckets(), START + 0.5)] == [("produce", ALICE)]
    assert list(entity_uses(first, first.buckets(), START + 1.0)) == []


def test_full_bucket_with_presumed_use_is_not_saved():
    first = engine(settings())
    bucket = used(first, "produce")
    bucket.meter = meter = SharedMeter(bucket.meter, 100.0, share=0.5, horizon=10.0)
    meter.charge(30, START)
    assert not meter.idle(START + 5.0)
    assert list(entity_uses(first, first.buckets(), START + 5.0)) == []


def test_shared_overflow_bucket_is_not_saved():
    first = QuotaEngine(replace(settings(), quotas=(EntityQuota(ClientQuotaEntity("alice", None), {}),)), START, max_buckets=1)
    quotas = (EntityQuota(ClientQuotaEntity(client_id="a"), {"producer_byte_rate": 1.0}),)
    quotas += (EntityQuota(ClientQuotaEntity(client_id="b"), {"producer_byte_rate": 1.0}),)
    first.apply(replace(settings(), quotas=quotas), START)
    for client_id in ("a", "b"):
        bucket_of(first, "produce", "x", client_id, START).charge(100, START)
    assert [use.tags for use in entity_uses(first, first.buckets(), START)] == [Tags(None, "a")]


def test_restored_use_is_in_no_counter():
    first = engine(settings())
    used(first, "produce", (0, 500))
    second, now = restarted(first, 0, 0)
    (row,) = [row for row in rows_of(second, now) if row.kind == "produce"]
    assert (row.user, row.tokens, row.amount_total, row.throttled_total, row.connections) == ("alice", -100.0, 0, 0, 0)
    assert row.throttle_left == 1.0
    second.tick(now + 1.0)
    assert bucket_of(second, "produce", "alice", "etl", now + 1.0).resolution.tags == ALICE


@pytest.mark.parametrize(
    ("changed", "tokens"),
    [
        # 1 000 of 100/s were used, so 400 - 1 000 are left.
        (settings(200.0), -600.0),  # the same as after a change of the limit at run time: a debt is in bytes
        (settings(10.0), -600.0),
        (settings(window=Window(9, 1.0)), -600.0),  # the same as after a change of the window at run time
        (QuotaSettings(), None),
    ],
)
def test_changed_quotas_apply_to_restored_use(changed, tokens):
    first = engine(settings())
    used(first, "produce", (0, 1_000))
    second, now = restarted(first, 0, 0, replace(changed, metering={"controller_mutation": RATE}))
    if tokens is None:
        assert list(second.buckets()) == []
    else:
        bucket = bucket_of(second, "produce", "alice", "etl", now)
        left = bucket.meter.tokens(now)
        # The wider window holds 800. The use in the bucket is subtracted.
        assert left == tokens


def test_changed_algorithm_starts_with_recent_use():
    first = engine(settings())
    used(first, "produce", (0, 300))
    second, now = restarted(first, 0, 1, settings(algorithm="window"))
    bucket = bucket_of(second, "produce", "alice", "etl", now)
    assert bucket.rate(now) == 50.0  # 200 of the 300 in the 4 s that it covers: one second's worth was refilled


@pytest.mark.parametrize(
    "saved",
    [
        BucketUse("no such kind", ALICE, RecentUse(1.0, Metering(), (PastUse(0, 0, 1.0),))),
        BucketUse("produce", Tags("bob", None), RecentUse(1.0, Metering(), (PastUse(0, 0, 1.0),))),
    ],
)
def test_use_without_quota_is_not_restored(saved):
    subject = engine(settings())
    assert not restore_entity(subject, saved, START)
    assert list(subject.buckets()) == []


def test_use_of_unknown_algorithm_is_dropped():
    subject = engine(settings())
    assert restore_entity(subject, BucketUse("produce", ALICE, RecentUse(1.0, Metering("leaky"), (PastUse(0, 0, 1.0),))), START)
    assert bucket_of(subject, "produce", "alice", "etl", START).meter.idle(START)


def test_debt_of_a_group_in_a_tree_outlives_a_restart():
    """Its meter runs at the rate of the last division, far below its ceiling."""
    groups = (
        Group("all", (), {"producer_byte_rate": 100.0}),
        Group("jobs", (GroupRule(user="job"),), parent="all", weights={"producer_byte_rate": 1.0}),
        Group("web", (GroupRule(user="web"),), parent="all", weights={"producer_byte_rate": 9.0}),
    )
    first = engine(grouped(groups))
    before = first.acquire_path("produce", "job", "", START)[1]
    before.charge(2_000_000, START)
    second, now = restarted(first, 0, 0)
    after = second.acquire_path("produce", "job", "", now)[1]
    assert after.meter.tokens(now) == before.meter.tokens(START) < 0.0


# Connections.

LIMITS = ConnectionLimits(
    max_per_ip=1_000,
    gateway=AcceptLimits(connection_creation_rate=100.0),
    listeners={"a": AcceptLimits(connection_creation_rate=1.0), "b": AcceptLimits()},
)
PER_IP = QuotaSettings((EntityQuota(ClientQuotaEntity(ip="10.0.0.1"), {"connection_creation_rate": 1.0}),), window=WINDOW)


def test_connections_before_restart_count_after_it():
    first = engine(PER_IP)
    quotas = ConnectionQuotas(first, LIMITS, START)
    for _ in range(6):
        quotas.accept("a", "10.0.0.2", START)
        quotas.accept("b", "10.0.0.1", START)
    assert quotas.wait("a", START) == 1.0
    uses = quotas.recent_uses(START)
    assert set(uses) == {None, "a"}

    second, now = restarted(first, 0, 0)
    again = ConnectionQuotas(second, LIMITS, now)
    for name, use in uses.items():
        again.restore(name, use, now)
    again.restore("b", uses["a"], now)  # its rate limit was removed
    again.restore("c", uses["a"], now)  # this listener was removed
    assert (again.wait("a", now), again.wait("b", now)) == (1.0, 0.0)
    assert again.accept("b", "10.0.0.1", now).delay == pytest.approx(1.0)
    assert again.recent_uses(now)[None].used[0].amount == 10.0  # six addresses here, and four connections of that address


def test_unenforced_rate_delays_nobody_after_restart():
    first = engine(replace(PER_IP, enforce=True))
    quotas = ConnectionQuotas(first, LIMITS, START)
    for _ in range(6):
        quotas.accept("a", "10.0.0.2", START)
    again = ConnectionQuotas(engine(replace(PER_IP, enforce=False)), LIMITS, START)
    again.restore("a", quotas.recent_uses(START)["a"], START)
    assert again.wait("a", START) == 0.0
