"""Intercepted requests: collected, changed or answered by Weir, in order, in any chunking."""

from struct import pack

import pytest

from gateway.proxy.handler import COLLECT, FORWARD, WAIT, Answer, Replace, check_size
from protocol.api_keys import ApiKey
from protocol.errors import InvalidFrame
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import Transcript, limits
from tests.protocol import codec

CHUNKS = [None, 1, 7, 50]
PASSES_UNOPENED = 60
HEAD_BYTES = 4 + 10 + len("etl") + 1
"""Length, header v2 with its client-id, no tags."""


def request(correlation_id, name="t"):
    values = {"topics": [{"name": name, "num_partitions": 1, "replication_factor": 1}], "timeout_ms": 1}
    return codec.encode_request(ApiKey.CREATE_TOPICS, 5, values, correlation_id, "etl")


def answer(correlation_id, error_code=0, throttle_time_ms=0):
    values = {"throttle_time_ms": throttle_time_ms, "topics": [{"name": "t", "error_code": error_code, "error_message": None}]}
    return codec.encode_response(ApiKey.CREATE_TOPICS, 5, values, correlation_id)


class Scripted:
    """A handler with the verdict and the response of the test."""

    def __init__(self, connection, *, is_ready=True, forwards=None, answers=None, delay=0.0):
        self.connection = connection
        self.is_ready = is_ready
        self.forwards = forwards
        self.answers = answers
        self.delay = delay
        self.seen = []

    def handle(self, request, now):
        check_size(request.after - request.pos, 1_000, "send less")
        if request.after - request.pos == PASSES_UNOPENED:
            return FORWARD
        if not request.whole:
            return COLLECT
        frame, header = request.cut()
        assert header.body_offset == HEAD_BYTES
        if not self.prepare(frame, now):
            return WAIT
        if self.delay:
            bucket = self.connection.client.bucket("produce", now)
            self.connection.throttle.start((self.delay, True), now, bucket, request.entry)
        if self.forwards is None:
            return Answer(self.answers)
        request.intercept(self)
        return Replace(self.forwards)

    def prepare(self, frame, now):
        self.seen.append(frame)
        return self.is_ready

    def response(self, frame, now):
        return self.answers


def opened(**script):
    made = []

    def factory(connection):
        if not made:
            made.append(Scripted(connection, **script))
        return made[0]

    t = Transcript(limits(produce=1_000), handlers={int(ApiKey.CREATE_TOPICS): factory})
    return t, made


@pytest.mark.parametrize("by", CHUNKS)
def test_handler_sees_whole_request_and_replaces_it(by):
    t, made = opened(forwards=request(2, "other"), answers=answer(2, 7))
    t.client_sends(m.heartbeat(1), request(2), m.heartbeat(3), by=by)
    t.broker_got(m.heartbeat(1), request(2, "other"), m.heartbeat(3))
    assert made[0].seen == [request(2)]
    t.broker_answers(m.beat(1), answer(2), m.beat(3), by=by)
    t.client_got(m.beat(1), answer(2, 7), m.beat(3))
    assert t.counters.requests[ApiKey.CREATE_TOPICS] == 1


@pytest.mark.parametrize("by", CHUNKS)
def test_local_answer_waits_for_earlier_responses(by):
    t, _ = opened(answers=answer(2))
    t.client_sends(m.heartbeat(1), request(2), m.heartbeat(3), by=by)
    t.broker_got(m.heartbeat(1), m.heartbeat(3))
    t.client_got()
    t.broker_answers(m.beat(1), m.beat(3), by=by)
    t.client_got(m.beat(1), answer(2), m.beat(3))


def test_local_answer_goes_out_at_once_when_first():
    t, _ = opened(answers=answer(1))
    t.client_sends(request(1))
    t.client_got(answer(1))
    t.broker_got()


@pytest.mark.parametrize("by", CHUNKS)
def test_undecided_request_stops_reading(by):
    t, made = opened(is_ready=False, forwards=request(2), answers=answer(2))
    t.client_sends(m.heartbeat(1), request(2), m.heartbeat(3), by=by)
    t.broker_got(m.heartbeat(1))
    assert t.paused
    t.broker_answers(m.beat(1))
    t.client_got(m.beat(1))
    assert t.paused
    made[0].is_ready = True
    made[0].connection.ready()
    t.run_ready()
    t.broker_got(request(2), m.heartbeat(3))
    assert not t.paused
    assert made[0].seen == [request(2), request(2)]
    assert t.counters.requests[ApiKey.CREATE_TOPICS] == 1


def test_handler_that_is_not_ready_waits_again():
    t, made = opened(is_ready=False, forwards=request(1))
    t.client_sends(request(1))
    made[0].connection.ready()
    t.run_ready()
    t.broker_got()
    assert t.paused


@pytest.mark.parametrize("forwards", [True, False])
def test_handler_can_throttle_in_its_answer(forwards):
    t, _ = opened(delay=2.0, forwards=request(1) if forwards else None, answers=answer(1))
    t.client_sends(request(1), m.heartbeat(2))
    if forwards:
        t.broker_got(request(1))
        t.passes(0.5)
        t.broker_answers(answer(1))
    t.client_got(answer(1, throttle_time_ms=1_500 if forwards else 2_000))
    t.broker_got()
    t.passes(2.0)
    t.broker_got(m.heartbeat(2))


def test_factory_may_let_a_request_pass():
    t = Transcript(handlers={int(ApiKey.CREATE_TOPICS): lambda connection: None})
    t.client_sends(request(1))
    t.broker_got(request(1))
    t.broker_answers(answer(1))
    t.client_got(answer(1))


def test_request_over_handler_size_ends_connection():
    t, _ = opened()
    frame = pack(">i", 1_000) + request(1)[4:]
    with pytest.raises(InvalidFrame, match="a request of 1004 bytes, at most 1000 are opened: send less"):
        t.client_sends(frame)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_request_that_handler_leaves_unopened_passes(chunk):
    t, made = opened()
    frame = request(1, "x" * (PASSES_UNOPENED - len(request(1, ""))))
    assert len(frame) == PASSES_UNOPENED
    t.client_sends(frame, m.heartbeat(2), by=chunk)
    t.broker_got(frame, m.heartbeat(2))
    assert [handler.seen for handler in made if handler.seen] == []


# Weir's own requests on the client's connection.


class Asking(Scripted):
    """Asks for metadata before it returns its verdict."""

    def prepare(self, frame, now):
        if not self.seen:
            self.connection.send_own_request(m.metadata(77, client_id="weir"), self.take, now)
        self.is_ready = len(self.seen) > 1
        self.seen.append(frame)
        return self.is_ready

    def take(self, answer, now):
        self.seen.append(answer)
        self.is_ready = True
        self.connection.ready()


def asking(**script):
    made = []

    def factory(connection):
        made.append(Asking(connection, **script))
        return made[-1]

    return Transcript(handlers={int(ApiKey.CREATE_TOPICS): factory}), made


@pytest.mark.parametrize("by", CHUNKS)
def test_own_request_precedes_and_its_answer_stays_hidden(by):
    t, made = asking(forwards=request(2), answers=answer(2))
    t.client_sends(m.heartbeat(1), request(2), m.heartbeat(3), by=by)
    t.broker_got(m.heartbeat(1), m.metadata(77, client_id="weir"))
    assert not t.core.idle
    t.broker_answers(m.beat(1), m.described(77, m.BROKERS), by=by)
    assert made[-1].seen == [request(2), m.described(77, m.BROKERS)]
    t.client_got(m.beat(1))
    assert not t.core.idle
    t.run_ready()
    t.broker_got(request(2), m.heartbeat(3))
    t.broker_answers(answer(2), m.beat(3), by=by)
    t.client_got(answer(2), m.beat(3))
    assert t.core.idle
    assert t.counters.requests[ApiKey.METADATA] == 0


def test_missing_own_answer_at_close_has_no_effect():
    t, made = asking(forwards=request(2))
    t.client_sends(request(2))
    t.core.close(t.now)
    assert made[0].seen == [request(2)]


def test_wrong_correlation_id_ends_connection():
    t, _ = asking(forwards=request(2))
    t.client_sends(request(2))
    with pytest.raises(InvalidFrame, match="answers 2 while 77 is due"):
        t.broker_answers(answer(2))
