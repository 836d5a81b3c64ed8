import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.quotas.meter import PastUse, Window, precharge
from gateway.quotas.rate import SampledRate, WindowMeter

START = 1_000.0
ELEVEN = Window(11, 1.0)


def meter(limit=100.0, window=ELEVEN):
    return WindowMeter(limit, window)


@pytest.mark.parametrize(
    ("charges", "delays"),
    [
        ([(0, 1000)], [0.0]),  # the whole window at once is within the quota
        ([(0, 1001)], [0.01]),
        ([(0, 3000)], [20.0]),
        ([(0, 1500), (5, 0)], [5.0, 5.0]),  # the burst stays in its sample ...
        ([(0, 1500), (10.9, 0)], [5.0, 4.1]),  # (1500 - 10.9 * 100) / 100
        ([(0, 1500), (11, 0)], [5.0, 0.0]),  # ... until the sample leaves the window
        ([(0.4, 500), (0.9, 500), (1.4, 100)], [0.0, 0.0, 1.0]),  # the window ends now and grows with each sample
    ],
)
def test_charges_give_expected_delays(charges, delays):
    subject = meter()
    assert [subject.charge(amount, START + after) for after, amount in charges] == pytest.approx(delays)


@pytest.mark.parametrize("window", [ELEVEN, Window(1, 1.0), Window(2, 0.5), Window(3, 60.0)])
def test_window_covers_its_samples_within_one(window):
    rate = SampledRate(window)
    rng = random.Random(5)
    now, seen = START, []
    for _ in range(2_000):
        now += rng.choice((0.001, rng.random(), window.seconds, rng.random() * window.seconds * window.samples))
        if rng.random() < 0.7:
            rate.record(1, now)
        seen.append(rate.window_ms(now))
    sample_ms = round(window.seconds * 1000)
    assert min(seen) >= max(1, (window.samples - 1) * sample_ms)
    assert max(seen) <= max((window.samples + 1) * sample_ms - 2, 1)


def test_longest_window_ends_before_its_oldest_sample():
    rate = SampledRate(ELEVEN)
    rate.record(1, START)
    rate.record(1, START + 0.999)
    assert rate.window_ms(START + 11.998) == 11_998
    assert rate.window_ms(START + 11.999) == 10_000


AFTER = st.floats(0.0, 15.0)


@given(st.lists(st.tuples(AFTER, st.integers(0, 3_000), st.lists(AFTER, max_size=3)), max_size=15))
@example([(0.0, 100, [60.05]), (1.0, 20_000, [])])
def test_looks_change_no_decision(steps):
    """Kafka looks at a rate right after each record only; ticks, scrapes and saved use look at any time."""
    seen, unseen, now = meter(), meter(), START
    for after, amount, looks in steps:
        now += after
        assert seen.charge(amount, now) == unseen.charge(amount, now)
        for pause in looks:
            now += pause
            seen.delay(now), seen.rate(now), seen.balance(now), seen.used_ratio(now), seen.idle(now), seen.dump(now)


def test_window_begins_with_its_first_record():
    """A bucket is made when its client connects, and charged with no recent use."""
    subject = meter()
    precharge(subject, 0.0, START)
    assert subject.charge(2_000, START + 0.9) == pytest.approx(10.0)


def test_changed_limit_keeps_use():
    subject = meter()
    subject.charge(1000, START)
    subject.set_limit(50.0, START)
    assert subject.delay(START) == 10.0
    subject.set_limit(1000.0, START)
    assert (subject.delay(START), subject.rate(START), subject.capacity) == (0.0, 100.0, 10_000.0)
    with pytest.raises(ValueError, match="must be positive"):
        subject.set_limit(0.0, START)


def test_meter_is_idle_after_all_samples_left():
    subject = meter()
    assert subject.idle(START)
    subject.charge(100, START)
    assert not subject.idle(START + 10.999)
    for tenth in range(200):  # a scrape purges the samples
        subject.rate(START + 1 + tenth / 10)
    assert subject.idle(START + 20.9)


def test_forgiven_meter_is_at_its_quota():
    subject = meter()
    subject.charge(1000, START)
    subject.charge(2000, START + 1)
    subject.forgive(START + 1)
    assert subject.delay(START + 1) == pytest.approx(0.0)
    assert subject.rate(START + 1) == pytest.approx(100.0)
    assert subject.charge(50, START + 1) == pytest.approx(0.5)


def test_forgiving_within_quota_changes_nothing():
    subject = meter()
    subject.charge(500, START)
    subject.forgive(START)
    assert subject.rate(START) == 50.0


pauses = st.sampled_from([0.0, 0.0, 0.1, 0.999, 1.0, 10.0, 10.999, 11.0, 30.0])


@given(st.lists(st.tuples(st.integers(0, 1_000), pauses), max_size=80))
@example([(1_000, 0.0)] * 80)
@example([(1_000, 0.0)] * 10 + [(1_000, 11.0)] * 70)
def test_obedient_client_gets_at_most_quota_and_burst(steps):
    """Requests are at most one sample of the quota. Larger requests gain (KIP-13): a burst is forgotten with its sample after
    11 s, even if its delay is longer. This is one reason why `window` is not the default."""
    subject = meter(limit=1_000.0)
    now, used = START, 0
    for amount, pause in steps:
        delay = subject.charge(amount, now)
        used += amount
        now += delay
        assert used <= 1_000 * (10.0 + now - START) + 10
        now += pause


@given(st.lists(st.integers(0, 10**12), max_size=30), st.randoms(use_true_random=False))
def test_order_of_simultaneous_charges_does_not_matter(amounts, rng: random.Random):
    shuffled = rng.sample(amounts, len(amounts))
    one, other = meter(), meter()
    for amount, another in zip(amounts, shuffled, strict=True):
        one.charge(amount, START)
        other.charge(another, START)
    assert one.rate(START) == other.rate(START) == sum(amounts) / 10


def test_shorter_samples_are_joined_if_there_are_too_many():
    rate = SampledRate(Window(3, 1.0))
    rate.restore([PastUse(began, began - 0.4, 1.0) for began in (2.0, 1.5, 1.0, 0.5, 0.4)], 100.0)
    assert rate.kept(100.0) == 5.0
    assert rate.live_samples(100.0) == 2


def test_capacity_is_that_of_all_samples_but_one():
    assert WindowMeter(10.0, Window(3, 2.0)).capacity == 40.0
