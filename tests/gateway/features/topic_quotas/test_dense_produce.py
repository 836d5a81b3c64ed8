"""Produce requests of many partitions under topic quotas: Weir reads their topics in several turns of the event loop."""

from itertools import pairwise

import pytest

from gateway.features.topic_quotas.produce_inspector import STEP_COST
from gateway.proxy.next_turns import MAX_READ_COST, MAX_TURN_COST
from protocol.api_keys import ApiKey
from protocol.errors import InvalidFrame
from tests.gateway.features.topic_quotas.test_produce_inspector import COLD, ERROR, HOT, NEW, Metered, produce, produced
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import START, limits

MANY = MAX_TURN_COST // STEP_COST
"""Partitions that take two turns at least, as each is two or three steps."""

EMPTY = dict.fromkeys(range(MANY))
APPENDED = dict.fromkeys(range(MANY), 0)


@pytest.mark.parametrize("version", [7, 9, 13])
@pytest.mark.parametrize("acks", [0, 1])
@pytest.mark.parametrize("by", [None, 100, 5_000])
def test_dense_request_passes_in_several_turns(version, acks, by):
    t = Metered()
    request = produce(1, (HOT, EMPTY), (COLD, {7: b"z" * 50}), version=version, acks=acks)
    behind = [m.heartbeat(2), m.heartbeat(3)]
    t.client_sends(request, *behind, by=by)
    t.goes_on()
    t.broker_got(produce(1, (HOT, EMPTY), (COLD, {7: b"z" * 50}), version=version, acks=1), *behind)
    t.broker_answers(produced(1, (HOT, APPENDED), (COLD, {7: 0}), version=version), m.beat(2), m.beat(3))
    answer = [] if acks == 0 else [produced(1, (HOT, APPENDED), (COLD, {7: 0}), version=version)]
    t.client_got(*answer, m.beat(2), m.beat(3))
    assert t.counted()[COLD] == (50, 0, {})
    assert t.counters.requests[ApiKey.PRODUCE] == 1


def test_turn_of_a_dense_request_is_bounded():
    t = Metered()
    request = produce(1, (HOT, EMPTY), version=7)
    t.client_sends(request)
    sizes = []
    while t.called_ready:
        sizes.append(len(t.broker_inbox))
        assert t.paused
        t.run_ready()
    partition = 8  # bytes: an index and a length
    head = len(produce(1, (HOT, {}), version=7))
    assert sizes[0] <= head + MAX_READ_COST // STEP_COST // 2 * partition
    turn = MAX_TURN_COST // STEP_COST // 2 * partition
    assert all(after - before <= turn for before, after in pairwise(sizes))
    t.broker_got(request)
    assert not t.paused


@pytest.mark.parametrize("partitions", [1, 100])
def test_ordinary_request_passes_at_once(partitions):
    t = Metered()
    request = produce(1, (HOT, dict.fromkeys(range(partitions), b"x" * 10_000)))
    t.client_sends(request)
    assert not t.called_ready
    t.broker_got(request)


def test_many_dense_requests_in_a_chunk_share_a_turn():
    t = Metered()
    few = dict.fromkeys(range(MAX_READ_COST // STEP_COST // 4))
    requests = [produce(number, (HOT, few), version=7) for number in range(100)]
    t.client_sends(*requests)
    assert t.called_ready
    assert len(t.broker_inbox) < len(b"".join(requests)) / 2
    t.goes_on()
    t.broker_got(*requests)


def test_rest_of_a_dense_request_passes_during_a_mute():
    t = Metered(limits(100))
    request = produce(1, (HOT, EMPTY))
    t.client_sends(request, m.heartbeat(2))
    assert t.core.throttle.active
    t.goes_on()
    t.broker_got(request)
    t.broker_answers(produced(1, (HOT, APPENDED)))
    t.passes(t.core.throttle.until - START)
    t.broker_got(m.heartbeat(2))


def test_rest_of_a_dense_request_passes_to_an_unread_client():
    t = Metered()
    request = produce(1, (HOT, EMPTY))
    t.client_sends(request[:-100])
    t.core.requests.pause_for_client()
    t.goes_on()
    t.client_sends(request[-100:], m.heartbeat(2))
    t.goes_on()
    t.broker_got(request)
    t.core.client_reads(t.now)
    t.broker_got(m.heartbeat(2))


def test_bytes_read_before_the_pause_follow_in_order():
    t = Metered(limits(10**6))
    request = produce(1, (HOT, EMPTY), (COLD, {1: b"z" * 100}))
    t.client_sends(request[:-60])
    t.client_sends_into_the_loop(request[-60:], m.heartbeat(2))
    t.goes_on()
    t.broker_got(request, m.heartbeat(2))
    assert t.row().amount_total == len(request) - 4


def test_drain_forwards_the_rest_of_a_dense_request():
    t = Metered()
    request = produce(1, (HOT, EMPTY))
    t.client_sends(request[:-10])
    t.ends()
    assert not t.half_closes()
    t.goes_on()
    t.client_sends(request[-10:], m.heartbeat(2))
    t.goes_on()
    t.broker_got(request)
    t.broker_answers(produced(1, (HOT, APPENDED)))
    t.client_got(produced(1, (HOT, APPENDED)))
    assert t.half_closes()


def test_unanswered_dense_request_passes_half_closed_connection():
    t = Metered()
    t.ends()
    assert t.half_closes()
    t.client_sends(produce(1, (HOT, EMPTY), acks=0), m.heartbeat(2))
    t.goes_on()
    t.broker_got(produce(1, (HOT, EMPTY), acks=1))


def test_closed_connection_takes_no_rest_of_a_dense_request():
    t = Metered()
    t.client_sends(produce(1, (HOT, EMPTY)))
    passed = len(t.broker_inbox)
    t.core.connection.take_no_more()
    t.run_ready()
    assert len(t.broker_inbox) == passed


def test_bad_partition_in_a_later_turn_ends_connection():
    t = Metered()
    request = bytearray(produce(1, (HOT, EMPTY), version=7))
    request[-4:] = (5).to_bytes(4, "big")
    t.client_sends(bytes(request))
    with pytest.raises(InvalidFrame):
        t.goes_on()


@pytest.mark.parametrize("by", [None, 1_000])
def test_long_request_over_the_total_has_a_turn_of_its_own(by):
    t = Metered()
    t.goes_over()
    long = produce(1, (HOT, {0: b"x" * MAX_READ_COST}), (NEW, {0: b"y"}))
    t.client_sends(long, long, by=by)
    for _ in range(2):
        t.broker_got()
        t.run_ready()
        t.broker_got(produce(1, (NEW, {0: b"y"})))
    assert not t.called_ready
    t.broker_answers(*[produced(1, (NEW, {0: 0}))] * 2)
    t.client_got(*[produced(1, (HOT, {0: ERROR}), (NEW, {0: 0}))] * 2)
