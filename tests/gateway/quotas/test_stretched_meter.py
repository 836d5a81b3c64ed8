"""A shadow limit's meter gives the throttle times of a client that waits for each of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.quotas.stretched_meter import StretchedMeter
from gateway.quotas.token_bucket import TokenBucket

START = 1_000.0
LIMIT = 100.0


def bucket():
    return TokenBucket(LIMIT, 10.0, START)


def stretched():
    return StretchedMeter(bucket(), LIMIT)


def in_debt_of(seconds):
    """A meter whose client has waited on the meter's clock for that time."""
    subject = stretched()
    assert subject.charge(1_000 + seconds * LIMIT, START) == pytest.approx(seconds)
    subject.forgive(START)
    return subject


def bucket_after_wait(seconds):
    waiting = bucket()
    waiting.charge(1_000 + seconds * LIMIT, START)
    assert waiting.tokens(START + seconds) == pytest.approx(0.0)
    return waiting


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(0, 5_000)), max_size=20))
def test_delays_are_those_of_a_client_that_waits(requests):
    subject, waiting, waited, now = stretched(), bucket(), 0.0, START
    for pause, amount in requests:
        now += pause
        delay = subject.charge(amount, now)
        assert delay == pytest.approx(waiting.charge(amount, now + waited), abs=1e-6)
        waited += delay
        subject.forgive(now)


def test_forgiven_debt_leaves_no_tokens():
    subject = in_debt_of(5.0)
    assert (subject.delay(START), subject.tokens(START)) == (0.0, pytest.approx(0.0))
    assert subject.used_ratio(START) == pytest.approx(1.0)
    assert subject.fetch_allowance(START) == bucket_after_wait(5.0).fetch_allowance(START + 5.0)


def test_new_limit_counts_from_its_change_on():
    subject = in_debt_of(5.0)
    subject.set_limit(2.0 * LIMIT, START + 1.0)
    assert subject.limit == 2.0 * LIMIT
    assert subject.tokens(START + 1.0) == pytest.approx(LIMIT)
    assert subject.tokens(START + 2.0) == pytest.approx(3.0 * LIMIT)


def test_answers_are_never_withheld():
    assert not stretched().takes_back
