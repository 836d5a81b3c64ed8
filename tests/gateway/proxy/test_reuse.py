"""Connections to a broker may serve another client if they have no state of the first one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.reuse import MAX_ANSWER_BYTES, MAX_ANSWERS
from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.test_any_order import head_of
from tests.gateway.proxy.transcript import Transcript, limits
from tests.protocol import codec


def sasl_handshake(number):
    return codec.encode_request(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}, number, "etl")


def telemetry(number):
    return codec.encode_request(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, {}, number, "etl")


def versions(number):
    return m.versions_are(number, [(int(ApiKey.PRODUCE), 0, 11)])


def answered(request, **values):
    """The request, and its answer with these values."""
    api_key, version, number = head_of(request)
    return request, codec.encode_response(api_key, version, values, number)


PRODUCED = (m.produce(1), m.produced(1))

SCRIPTS = {
    "one Produce": ([PRODUCED], True),
    "ApiVersions and a Produce": ([(m.api_versions(1), versions(1)), (m.produce(2), m.produced(2))], True),
    "a Fetch": ([(m.fetch(1), m.fetched_nothing(1))], True),
    "a Heartbeat": ([(m.heartbeat(1), m.beat(1))], True),
    "nothing": ([], False),
    "ApiVersions alone": ([(m.api_versions(1), versions(1))], False),
    "a Produce without an answer": ([PRODUCED, (m.produce(2), b"")], False),
    "acks=0 before": ([(m.produce(1, acks=0), b""), (m.produce(2), m.produced(2))], False),
    "acks=0 last": ([PRODUCED, (m.produce(2, acks=0), b"")], False),
    "half a request": ([PRODUCED, (m.produce(2)[:60], b"")], False),
    "the head of a request": ([PRODUCED, (m.produce(2)[:10], b"")], True),
    "half an answer": ([PRODUCED, (m.produce(2), m.produced(2)[:-1])], False),
    "the beginning of an answer that nobody awaits": ([(m.produce(1), m.produced(1) + b"\0\0\0")], False),
    "a broker's mute": ([(m.heartbeat(1), m.beat(1, throttle_time_ms=1))], False),
    "a broker's mute that has passed": ([(m.heartbeat(1), m.beat(1, throttle_time_ms=1)), (m.heartbeat(2), m.beat(2))], True),
    "an answer without a throttle time": ([(m.heartbeat(1, version=0), m.beat(1, version=0))], False),
    "a login": ([answered(sasl_handshake(1)), (m.produce(2), m.produced(2))], False),
    "a share session": ([answered(m.share_fetch(1), responses=[]), (m.produce(2), m.produced(2))], False),
    "telemetry": ([answered(telemetry(1)), (m.produce(2), m.produced(2))], False),
    "a long answer": ([(m.fetch(1), m.fetched(1, records=m.batch(MAX_ANSWER_BYTES)))], False),
    "a long answer behind a short one": (
        [PRODUCED, (m.fetch(2), m.fetched(2, records=m.batch(MAX_ANSWER_BYTES)))], False,
    ),
    "a short answer behind a long one": (
        [(m.fetch(1), m.fetched(1, records=m.batch(MAX_ANSWER_BYTES))), (m.produce(2), m.produced(2))], True,
    ),
}  # fmt: skip


def played(script, **options):
    t = Transcript(**options)
    for request, answer in script:
        t.client_sends(request)
        if answer:
            t.broker_answers(answer)
    return t


@pytest.mark.parametrize("name", SCRIPTS)
def test_connection_is_reused_without_any_state(name):
    script, reusable = SCRIPTS[name]
    assert played(script).core.reusable is reusable


@pytest.mark.parametrize("answers", [MAX_ANSWERS - 1, MAX_ANSWERS])
def test_connection_is_not_reused_after_long_use(answers):
    t = Transcript()
    for number in range(1, answers + 1):
        t.client_sends(m.produce(number))
        t.broker_answers(m.produced(number))
    assert t.core.reusable is (answers < MAX_ANSWERS)


def test_connection_is_reused_after_pipelined_requests():
    t = Transcript()
    t.client_sends(*map(m.produce, (1, 2, 3)))
    t.broker_answers(*map(m.produced, (1, 2, 3)))
    assert t.core.reusable


def test_mute_by_weir_does_not_concern_the_broker():
    t = played([(m.produce(1, size=50_000), m.produced(1))], settings=limits(produce=100))
    assert t.throttled_by == "producer_byte_rate"
    assert t.core.reusable


def test_held_request_has_not_reached_the_broker():
    t = played([(m.produce(1, size=50_000), m.produced(1))], settings=limits(produce=100))
    t.client_sends_into_the_loop(m.produce(2))
    assert t.core.reusable


@given(st.lists(st.integers(0, 200), max_size=12), st.lists(st.integers(0, 200), max_size=12))
def test_reusable_connection_stands_between_two_requests(client_cuts, broker_cuts):
    """The bytes of client and broker arrive in any parts. The model sees only the broker's side."""
    requests = b"".join(m.produce(number, acks=1) for number in range(1, 5))
    answers = b"".join(m.produced(number) for number in range(1, 5))
    frame, answer = len(requests) // 4, len(answers) // 4
    t = Transcript()
    sent = got = 0
    for request_part, answer_part in zip(client_cuts, broker_cuts, strict=False):
        t.client_sends(requests[sent : sent + request_part])
        sent = min(sent + request_part, len(requests))
        answered = min(got + answer_part, sent // frame * answer)
        t.broker_answers(answers[got:answered])
        got = answered
        forwarded = len(t.broker_inbox)
        if t.core.reusable:
            assert forwarded % frame == 0
            assert got == forwarded // frame * answer
