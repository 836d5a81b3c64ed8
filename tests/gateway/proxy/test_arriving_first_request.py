"""A first Produce whose turn comes before its last bytes. Its client may have given up, and the unread bytes hide that."""

import pytest

from gateway.proxy.handler import EndConnection
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.line import LOOK_SECONDS
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.test_request_rate_on_connection import rates
from tests.gateway.proxy.test_waiting_for_debt import debt, indebted, only_bucket, owe, produce_quota
from tests.gateway.proxy.transcript import START, Transcript
from tests.gateway.quotas.engines import bucket_of

REQUEST = m.produce(1, size=2_000)
PART = 100
"""Bytes of the request that arrive before the wait."""


def waiting(engine, sent=REQUEST):
    t = Transcript(engine=engine)
    t.client_sends(sent)
    return t


def arriving(engine):
    """A connection whose turn comes after three seconds, with a part of its request."""
    t = waiting(engine, REQUEST[:PART])
    t.passes(3.0)
    return t


def arriving_and_other(engine):
    """As above, and a connection that waits behind it."""
    t, other = waiting(engine, REQUEST[:PART]), waiting(engine)
    for each in (t, other):
        each.passes(3.0)
    return t, other


def test_broker_gets_a_request_whose_client_stays():
    engine = indebted(3.0)
    t = arriving(engine)
    t.broker_got()
    t.client_sends(REQUEST[PART:], by=300)
    t.broker_got(REQUEST)
    assert only_bucket(engine).amount_total == 13_000 + 2_000
    assert only_bucket(engine).first_requests.waiting == 0


def test_client_that_has_given_up_pays_nothing():
    engine = indebted(3.0)
    t = arriving(engine)
    t.client_sends(REQUEST[PART:-1], by=300)
    t.core.close(t.now)
    t.broker_got()
    assert debt(engine) == pytest.approx(3_000)  # as at START
    assert only_bucket(engine).first_requests.waiting == 0


def test_client_that_left_behind_a_whole_request_pays_nothing():
    engine = indebted(3.0)
    t = arriving(engine)
    t.left = True
    with pytest.raises(EndConnection):
        t.client_sends(REQUEST[PART:])
    t.core.close(t.now)
    t.broker_got()
    assert debt(engine) == pytest.approx(3_000)  # as at START
    owe(engine, 100.0, t.now)
    later = waiting(engine)
    later.passes(3.0)
    later.broker_got(REQUEST)  # with the turn that the client has left


def test_broker_gets_an_unanswered_request_of_a_gone_client():
    engine, request = indebted(3.0), m.produce(1, size=2_000, acks=0)
    t = waiting(engine, request[:PART])
    t.passes(3.0)
    t.left = True
    t.client_sends(request[PART:])
    t.broker_got(request)


def test_client_that_has_given_up_keeps_its_turn():
    engine = indebted(3.0)
    t = arriving(engine)
    t.core.close(t.now)
    owe(engine, 100.0, t.now)
    later = waiting(engine)
    later.passes(3.0)
    later.broker_got(REQUEST)


def test_others_wait_while_a_request_arrives():
    engine = indebted(3.0)
    t, other = arriving_and_other(engine)
    other.broker_got()
    t.client_sends(REQUEST[PART:])
    other.passes(LOOK_SECONDS)
    other.broker_got()
    assert other.core.throttle.until == pytest.approx(t.now + 2.0)


def test_others_pass_once_a_client_has_given_up():
    engine = indebted(3.0)
    t, other = arriving_and_other(engine)
    t.core.close(t.now)
    other.passes(LOOK_SECONDS)
    other.broker_got(REQUEST)


def test_slow_request_is_charged_as_it_arrives():
    engine = indebted(3.0)
    t, other = arriving_and_other(engine)
    t.passes(LOOK_SECONDS)
    t.client_sends(REQUEST[PART:1_504])
    assert only_bucket(engine).amount_total == 13_000 + 1_500
    other.passes(LOOK_SECONDS)
    other.broker_got()
    t.client_sends(REQUEST[1_504:])
    t.broker_got(REQUEST)
    assert only_bucket(engine).amount_total == 13_000 + 2_000


def test_silent_client_keeps_others_for_a_second():
    engine = indebted(3.0)
    _, other = arriving_and_other(engine)
    other.passes(LOOK_SECONDS)
    other.broker_got(REQUEST)


def test_request_that_did_not_wait_is_forwarded_as_it_comes():
    t = waiting(QuotaEngine(produce_quota(), START), REQUEST[:PART])
    t.broker_got(REQUEST[:PART])


def test_wait_for_a_rate_of_requests_ends_alike():
    engine = QuotaEngine(rates(), START)
    bucket = bucket_of(engine, "request_rate", "ANONYMOUS", "etl", START)
    delay, _ = bucket.charge(40, START)
    t = waiting(engine, REQUEST[:PART])
    t.passes(delay)
    t.broker_got()
    assert bucket.first_requests.waiting == 1
    t.client_sends(REQUEST[PART:])
    t.broker_got(REQUEST)
    assert bucket.first_requests.waiting == 0
