import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.quotas.meter import FETCH_SLICE_SECONDS, Window
from gateway.quotas.token_bucket import MAX_DEBT_SECONDS, TokenBucket

START = 1_000.0


def bucket(limit=100.0, burst_seconds=10.0):
    return TokenBucket(limit, burst_seconds, START)


@pytest.mark.parametrize(
    ("charges", "delays", "tokens"),
    [
        # (seconds after the start, amount) ..., the delay after each, the balance after the last
        ([(0, 0)], [0.0], 1000.0),
        ([(0, 1000)], [0.0], 0.0),  # nothing left is no debt
        ([(0, 1001)], [0.01], -1.0),
        ([(0, 3000)], [20.0], -2000.0),  # one request may go over by any amount
        ([(0, 1000), (1, 100)], [0.0, 0.0], 0.0),  # refilled at the quota
        ([(0, 1000), (1, 150)], [0.0, 0.5], -50.0),
        ([(0, 1000), (100, 1000)], [0.0, 0.0], 0.0),  # but never above the burst
        ([(50, 1000)], [0.0], 0.0),
        ([(0, 1500), (5, 0)], [5.0, 0.0], 0.0),  # a client that waits as requested is within the quota again
        ([(0, 1500), (4, 0)], [5.0, 1.0], -100.0),
        ([(0, 500), (0, -100)], [0.0, 0.0], 600.0),  # a refund
        ([(0, 500), (0, -2000)], [0.0, 0.0], 1000.0),
        ([(0, 1500), (0, -1000)], [5.0, 0.0], 500.0),
    ],
)
def test_charges_give_expected_delays(charges, delays, tokens):
    subject = bucket()
    assert [subject.charge(amount, START + after) for after, amount in charges] == delays
    end = START + charges[-1][0]
    assert subject.tokens(end) == tokens
    assert subject.delay(end) == delays[-1]


def test_queries_change_nothing():
    subject = bucket()
    subject.charge(1500, START)
    assert [subject.delay(START + t) for t in (0, 1, 4, 5, 100, 1)] == [5.0, 4.0, 1.0, 0.0, 0.0, 4.0]
    assert [subject.tokens(START + t) for t in (0, 5, 100, 0)] == [-500.0, 0.0, 1000.0, -500.0]


@pytest.mark.parametrize(
    ("used", "limit", "tokens", "delay"),
    [
        (0, 50.0, 500.0, 0.0),  # a full bucket is cut to the new burst
        (800, 50.0, 200.0, 0.0),
        (0, 200.0, 1000.0, 0.0),  # and does not grow with it: the history stays
        (1500, 50.0, -500.0, 10.0),  # a debt is in bytes, so half the quota takes twice the time
        (1500, 200.0, -500.0, 2.5),
    ],
)
def test_changed_limit_keeps_use(used, limit, tokens, delay):
    subject = bucket()
    subject.charge(used, START)
    subject.set_limit(limit, START)
    assert (subject.tokens(START), subject.delay(START)) == (tokens, delay)
    assert subject.capacity == limit * 10


def test_changed_limit_refills_at_old_rate_until_change():
    subject = bucket()
    subject.charge(1000, START)
    subject.set_limit(10.0, START + 0.5)
    assert subject.tokens(START + 1.5) == 60.0


@pytest.mark.parametrize(("limit", "burst_seconds"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0)])
def test_limit_and_burst_must_be_positive(limit, burst_seconds):
    with pytest.raises(ValueError, match="must be positive"):
        TokenBucket(limit, burst_seconds, START)
    with pytest.raises(ValueError, match="must be positive"):
        bucket().set_limit(min(limit, 0.0), START)


def test_forgiving_clears_debt_without_a_gift():
    subject = bucket()
    subject.charge(1500, START)
    subject.forgive(START + 1)
    assert subject.tokens(START + 1) == 0.0
    subject.charge(-300, START + 1)
    subject.forgive(START + 1)
    assert subject.tokens(START + 1) == 300.0


def test_full_bucket_is_idle():
    subject = bucket()
    assert subject.idle(START)
    subject.charge(100, START)
    assert [subject.idle(START + t) for t in (0, 0.5, 1)] == [False, False, True]


def test_fetch_allowance_is_balance_or_a_quota_slice():
    subject = bucket()
    allowances = []
    for used in (0, 400, 598, 1000):
        subject.charge(used, START)
        allowances.append(subject.fetch_allowance(START))
    slice_of_it = 100 * FETCH_SLICE_SECONDS
    assert allowances == [1000.0, 600.0, slice_of_it, slice_of_it]


@pytest.mark.parametrize(
    ("window", "burst"), [(Window(), 1000.0), (Window(2, 30.0), 3000.0), (Window(1, 1.0), 100.0), (Window(4, 0.5), 150.0)]
)
def test_burst_matches_kafkas_window(window, burst):
    assert TokenBucket.for_bytes(100.0, window, START).capacity == burst


steps = st.lists(st.tuples(st.integers(0, 5_000), st.floats(0, 30)), min_size=1, max_size=60)


@given(steps, st.floats(1, 1e9), st.floats(0.1, 100))
def test_obedient_client_gets_at_most_quota_and_burst(steps, limit, burst_seconds):
    subject = TokenBucket(limit, burst_seconds, START)
    now, used = START, 0
    for amount, pause in steps:
        delay = subject.charge(amount, now)
        used += amount
        now += delay
        assert used <= limit * burst_seconds + limit * (now - START) + 1e-3 * limit
        now += pause


@given(steps, st.floats(1, 1e6))
def test_busy_client_gets_its_whole_quota(steps, limit):
    subject = TokenBucket(limit, 10.0, START)
    now, used = START, 0
    for amount, _ in steps:
        now += subject.charge(amount, now)
        used += amount
    assert used >= limit * (now - START) - 1e-3 * limit


@given(st.lists(st.integers(0, 10**12), max_size=30), st.randoms(use_true_random=False))
def test_order_of_simultaneous_charges_does_not_matter(amounts, rng: random.Random):
    shuffled = rng.sample(amounts, len(amounts))
    one, other = bucket(), bucket()
    for amount, another in zip(amounts, shuffled, strict=True):
        one.charge(amount, START + 3)
        other.charge(another, START + 3)
    assert one.tokens(START + 3) == other.tokens(START + 3) == 1000 - sum(amounts)


def test_lower_limit_keeps_the_longest_debt():
    subject = TokenBucket.for_bytes(1e8, Window(), START)
    subject.charge(2e9, START)
    subject.set_limit(1_024.0, START)
    assert subject.delay(START) == MAX_DEBT_SECONDS
