"""KIP-599's rate: a burst fills past samples, and leaves them one by one."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.quotas.meter import PastUse, Window
from gateway.quotas.spread_rate import SpreadRate
from gateway.quotas.token_bucket import MAX_DEBT_SECONDS, TokenBucket

START = 1_000.0
KIP = Window(100, 1.0)
"""The KIP's example: a quota of 5 partitions per second over 100 samples of one second."""


def test_kip_599_burst_of_560_waits_12_seconds():
    rate = SpreadRate(5.0, KIP, START)
    assert rate.charge(560, START) == 12.0
    assert rate.rate(START) == 5.6
    assert rate.tokens(START) == -60.0
    assert rate.delay(START + 11.0) == 1.0
    assert rate.delay(START + 12.0) == 0.0
    assert rate.rate(START + 12.0) == 5.0


def test_token_bucket_agrees_with_kip_599_example():
    bucket = TokenBucket.for_mutations(5.0, KIP, START)
    assert bucket.charge(560, START) == 12.0
    assert bucket.delay(START + 12.0) == 0.0


@pytest.mark.parametrize(
    ("seconds", "used"),
    [(0, 560), (1, 555), (12, 500), (99, 65), (100, 60), (111, 5), (112, 0), (10_000, 0)],
)
def test_burst_and_surplus_leave_sample_by_sample(seconds, used):
    rate = SpreadRate(5.0, KIP, START)
    rate.charge(560, START)
    assert rate.tokens(START + seconds) == 500 - used
    assert rate.idle(START + seconds) is (used == 0)


def test_debt_shrinks_in_steps_of_a_sample():
    """The debt of a token bucket shrinks evenly."""
    rate, bucket = SpreadRate(2.0, Window(11, 1.0), START), TokenBucket.for_mutations(2.0, Window(11, 1.0), START)
    for meter in (rate, bucket):
        assert meter.charge(25, START) == 1.5
    assert [rate.delay(START + after) for after in (0.9, 1.0, 1.9, 2.0)] == [1.5, 0.5, 0.5, 0.0]
    assert [bucket.delay(START + after) for after in (0.5, 1.0, 1.5)] == [1.0, 0.5, 0.0]


def test_refund_is_taken_from_newest_samples():
    rate = SpreadRate(2.0, Window(11, 1.0), START)
    rate.charge(30, START)
    rate.charge(-10, START)
    assert rate.tokens(START) == 2.0
    rate.charge(-1_000, START)
    assert (rate.tokens(START), rate.idle(START)) == (22.0, True)


def test_debt_over_a_window_is_waited_for():
    rate, bucket = SpreadRate(5.0, KIP, START), TokenBucket.for_mutations(5.0, KIP, START)
    for meter in (rate, bucket):
        assert meter.charge(2_000, START) == 300.0
        assert [meter.delay(START + after) for after in (99.0, 100.0, 299.0, 300.0)] == [201.0, 200.0, 1.0, 0.0]


@pytest.mark.parametrize("clients", [1, 10])
def test_overdrafts_are_paid_back(clients):
    """The surplus of each sample used to come back with it, once a window: 1.05 of the quota with 1 client, 1.5 with 10."""
    rate, used, now = SpreadRate(5.0, Window(11, 1.0), START), 0, START
    while now < START + 300.0:
        now += rate.delay(now)
        for _ in range(clients):
            rate.charge(3, now)
        used += 3 * clients
        now += 0.01
    assert used <= 55 + 5 * (now - START) + 3 * clients


def test_surplus_is_given_back_first_and_survives_a_restart():
    rate, again = SpreadRate(5.0, KIP, START), SpreadRate(5.0, KIP, START)
    rate.charge(2_000, START)
    rate.charge(-500, START)
    assert rate.delay(START) == 200.0
    again.restore([PastUse(each.began + 150.0, each.ended + 150.0, each.amount) for each in rate.dump(START)], START + 150.0)
    assert [again.delay(START + after) for after in (150.0, 199.0, 200.0)] == [50.0, 1.0, 0.0]
    again.forgive(START + 150.0)
    assert again.delay(START + 150.0) == 0.0


def test_burst_fills_earlier_gaps_first():
    rate = SpreadRate(2.0, Window(3, 1.0), START)
    rate.charge(1, START)  # into the oldest of three samples
    rate.charge(3, START)  # fills the oldest sample, then the one before the current
    rate.charge(1, START)
    assert [rate.tokens(START + after) for after in (0, 1, 2, 3)] == [1, 3, 5, 6]


def test_changed_limit_keeps_use():
    rate = SpreadRate(5.0, KIP, START)
    rate.charge(560, START)
    rate.set_limit(10.0, START)
    assert (rate.delay(START), rate.tokens(START)) == (0.0, 440.0)
    rate.set_limit(5.0, START)
    assert rate.delay(START) == 12.0


@pytest.mark.parametrize("lowered", [999.0, 100.0, 10.0, 1.0, 0.01])
@pytest.mark.parametrize("used", [4_000, 11_000, 11_500])
def test_use_within_a_higher_limit_leaves_with_the_window(lowered, used):
    rate = SpreadRate(1_000.0, Window(11, 1.0), START)
    rate.charge(used, START)
    rate.set_limit(lowered, START)
    delay = rate.delay(START)
    debt = min(max(used - 11_000, 0), lowered * MAX_DEBT_SECONDS)
    assert delay <= 11.0 + debt / lowered
    assert rate.delay(START + ceil(delay)) == pytest.approx(0.0, abs=1e-6)  # whole samples leave


def test_lowered_limit_keeps_the_longest_debt():
    rate = SpreadRate(1_000.0, Window(11, 1.0), START)
    rate.charge(1_000_000, START)
    rate.set_limit(1.0, START)
    assert rate.delay(START) == pytest.approx(MAX_DEBT_SECONDS)


def test_forgiven_meter_is_at_its_quota():
    rate = SpreadRate(5.0, KIP, START)
    rate.charge(600, START)
    rate.forgive(START)
    assert rate.tokens(START) == pytest.approx(0.0)
    assert rate.delay(START) == pytest.approx(0.0)


@pytest.mark.parametrize("limit", [0.0, -1.0])
def test_limit_must_be_positive(limit):
    with pytest.raises(ValueError, match="must be positive"):
        SpreadRate(limit, KIP, START)
    with pytest.raises(ValueError, match="must be positive"):
        SpreadRate(1.0, KIP, START).set_limit(limit, START)


@given(
    st.lists(st.tuples(st.integers(-50, 400), st.integers(0, 4_000)), max_size=40),
    st.integers(1, 20),
    st.integers(2, 12),
)
def test_balance_never_exceeds_window_and_debt_waits(steps, limit, samples):
    rate = SpreadRate(float(limit), Window(samples, 1.0), START)
    now = START
    for amount, ms in steps:
        now += ms / 1000
        delay = rate.charge(amount, now)
        tokens = rate.tokens(now)
        assert tokens <= rate.capacity
        assert (delay > 0.0) == (tokens < 0.0)
        assert tokens <= rate.capacity - max(amount, 0)


def test_parts_of_a_unit_count():
    rate = SpreadRate(1.0, Window(3, 1.0), 100.0)
    rate.charge(0.5, 100.0)
    assert (rate.tokens(100.0), [each.amount for each in rate.dump(100.0)]) == (2.5, [0.5])
    assert rate.fetch_allowance(100.0, 0.5, 2) == 1.0
    assert rate.fetch_allowance(100.0, 9.0) == 0.0


def test_use_at_the_edge_of_the_window_is_restored():
    rate = SpreadRate(1.0, Window(3, 1.0), 100.0)
    rate.restore([PastUse(3.0, 2.9, 1.0), PastUse(2.998, 2.0, 1.0)], 100.0)
    assert rate.tokens(100.0) == 2.0


def test_debt_has_a_longest_time() -> None:
    rate = SpreadRate(5.0, KIP, START)
    assert rate.charge(2**31 - 1, START) == MAX_DEBT_SECONDS


def test_used_ratio_is_the_kips_rate_by_quota():
    rate = SpreadRate(5.0, KIP, START)
    rate.charge(560, START)
    assert rate.used_ratio(START) == pytest.approx(5.6 / 5.0)
    assert rate.used_ratio(START + 12.0) == pytest.approx(1.0)
