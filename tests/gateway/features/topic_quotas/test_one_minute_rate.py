"""The rate of the last minute, compared with Yammer's arithmetic tick by tick."""

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.topic_quotas.one_minute_rate import ALPHA, OneMinuteRate
from gateway.quotas.meter import Window
from gateway.quotas.rate import SampledRate

START = 1_000.0


class Ewma:
    """`com.yammer.metrics.stats.EWMA.oneMinuteEWMA`, ticked by hand."""

    def __init__(self):
        self.uncounted = 0.0
        self.rate = None

    def tick(self):
        instant, self.uncounted = self.uncounted / 5.0, 0.0
        self.rate = instant if self.rate is None else self.rate + (1 - exp(-5.0 / 60.0)) * (instant - self.rate)


def test_rate_matches_reference_figures_of_codahale():
    """`EWMATest.aOneMinuteEWMAWithAValueOfThree`: 3 in the first five seconds, then nothing for fifteen minutes."""
    rate = OneMinuteRate(START)
    rate.record(3, START)
    expected = [0.6, 0.22072766, 0.08120117, 0.02987224, 0.01098938, 0.00404277, 0.00148725, 0.00054713, 0.00020128]
    for minute, value in enumerate(expected):
        assert rate.measure(START + 5.001 + 60 * minute) == pytest.approx(value, abs=5e-9)


def test_kept_use_is_first_raw_then_a_minute_of_the_rate():
    rate = OneMinuteRate(START)
    rate.record(3, START)
    assert rate.kept(START + 4) == 3
    assert rate.kept(START + 5.001) == pytest.approx(0.6 * 60)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0.0, 0.0),
        (5.0, 0.0),  # an interval ends only after more than five seconds
        (5.001, 100.0),
        (9.999, 100.0),
        (10.0, 100.0 * (1 - ALPHA)),  # two intervals at once, as in Yammer
        (10.002, 100.0 * (1 - ALPHA)),
        (65.003, 100.0 * (1 - ALPHA) ** 12),
    ],
)
def test_rate_is_constant_between_ticks(at, value):
    rate = OneMinuteRate(START)
    rate.record(500, START)
    assert rate.measure(START + at) == pytest.approx(value)


def test_steady_stream_is_seen_from_first_tick():
    rate = OneMinuteRate(START)
    for second in range(120):
        rate.record(1_000, START + second)
        assert rate.measure(START + second) == pytest.approx(1_000 if second > 5 else 0, rel=0.2)


def test_late_reads_move_no_tick():
    """Reads at odd times do not move the ticks, which are multiples of five seconds after the start."""
    rate = OneMinuteRate(START)
    rate.record(500, START + 1)
    assert rate.measure(START + 8.9) == 100.0
    rate.record(500, START + 9.0)
    assert rate.measure(START + 10.001) == 100.0  # and not only at 13.9


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 10**9)), max_size=40), st.integers(0, 300_000))
def test_rate_matches_yammer_at_any_times(events, last):
    rate, ewma = OneMinuteRate(START), Ewma()
    now_ms = 0
    ticked = 0

    def catch_up():
        nonlocal ticked
        if now_ms - ticked > 5_000:
            while now_ms - ticked >= 5_000:
                ewma.tick()
                ticked += 5_000

    for pause_ms, amount in events:
        now_ms += pause_ms
        catch_up()
        ewma.uncounted += amount
        rate.record(amount, START + now_ms / 1000)
    now_ms += last
    catch_up()
    assert rate.measure(START + now_ms / 1000) == pytest.approx(ewma.rate or 0.0, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("rate", [OneMinuteRate(START), SampledRate(Window(11, 1.0))])
def test_both_rates_agree_on_a_steady_stream(rate):
    for step in range(3_000):
        rate.record(10_000, START + step / 10)
    assert rate.measure(START + 300) == pytest.approx(100_000, rel=0.02)
