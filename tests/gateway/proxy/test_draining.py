"""The end of a session while its gateway drains, as a transcript: each request in progress is answered, and none is lost."""

from math import ceil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.proxy.handler import FORWARD_COST, HANDLER_COST
from gateway.proxy.in_flight import MAX_IN_FLIGHT
from gateway.proxy.next_turns import MAX_TURN_COST
from gateway.proxy.produce_gate import ProduceGate
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import VOLUMES, ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from tests.gateway.features.topic_quotas.test_produce_inspector import COLD, HOT, Metered, produced
from tests.gateway.features.topic_quotas.test_produce_inspector import produce as produce_to
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.handlers.test_sasl_handler import handshake, handshaken, raw
from tests.gateway.proxy.handlers.test_sasl_handler import transcript as authenticating
from tests.gateway.proxy.test_handler import answer, opened, request
from tests.gateway.proxy.test_pass_through import EXCHANGES, Broker, frames_of, scripts, take_turn
from tests.gateway.proxy.transcript import START, Transcript, limits
from tests.gateway.quotas.engines import bucket_of

CHUNKS = [None, 1, 7, 100]
TURN = ceil(MAX_TURN_COST / (FORWARD_COST + HANDLER_COST))
"""The Produce requests that a connection may have taken in one turn of the event loop."""

OVER = 10_500
"""Bytes of a request after which a client with a quota of 1000 a second waits for half a second."""


def test_idle_connection_drains_at_once():
    t = Transcript()
    t.client_sends(m.produce(1))
    t.broker_got(m.produce(1))
    t.broker_answers(m.produced(1))
    t.ends()
    assert t.half_closes()
    t.client_got(m.produced(1))


def test_unused_connection_drains_at_once():
    t = Transcript()
    t.ends()
    assert t.half_closes()


@pytest.mark.parametrize("by", CHUNKS)
def test_drain_answers_requests_in_flight_only(by):
    t = Transcript()
    t.client_sends(m.produce(1), m.fetch(2), m.heartbeat(3))
    t.ends()
    t.client_sends(m.produce(4), m.heartbeat(5), by=by)
    t.broker_got(m.produce(1), m.fetch(2), m.heartbeat(3))
    for response in (m.produced(1), m.fetched(2), m.beat(3)):
        assert not t.half_closes()
        t.broker_answers(response, by=by)
        t.client_got(response)
    assert t.half_closes()
    t.broker_got()
    t.client_sends(m.produce(6), by=by)
    t.broker_got()


def test_drain_waits_for_unfinished_response():
    t = Transcript()
    t.client_sends(m.fetch(1))
    t.ends()
    response = m.fetched(1, size=1_000)
    t.broker_answers(response[:900])
    assert not t.half_closes()
    t.broker_answers(response[900:])
    assert t.half_closes()
    t.client_got(response)


@pytest.mark.parametrize("acks", [-1, 0])
@pytest.mark.parametrize("cut", [1, 4, 11, 20, 45, 70])
def test_drain_reads_unfinished_request_to_its_end(cut, acks):
    """A request is not in progress until its header has been read."""
    first, second = m.produce(1, acks=acks, size=1_000), m.produce(2, acks=acks)
    t = Transcript()
    t.client_sends(first[:cut])
    begun = len(t.broker_inbox) > 0
    t.ends()
    assert t.half_closes() is not begun
    if begun:
        t.client_sends(first[cut:900])
        assert not t.half_closes()
        t.client_sends(first[900:] + second)
        t.broker_got(first)
        if acks != 0:
            assert not t.half_closes()
            t.broker_answers(m.produced(1))
            t.client_got(m.produced(1))
        assert t.half_closes()
        t.broker_got(*([] if acks else [second]))
    else:
        t.client_sends(first[cut:] + second)
        t.broker_got(*([] if acks else [first, second]))


def test_drain_stops_endless_pipelining():
    t = Transcript()
    t.client_sends(*(m.produce(number) for number in range(MAX_IN_FLIGHT + 10)))
    t.goes_on()
    assert t.paused
    t.ends()
    t.client_sends(m.produce(5_000))
    t.broker_got(*(m.produce(number) for number in range(MAX_IN_FLIGHT + 1)))
    t.broker_answers(*(m.produced(number) for number in range(MAX_IN_FLIGHT)))
    assert not t.half_closes()
    t.broker_answers(m.produced(MAX_IN_FLIGHT))
    assert t.half_closes()
    t.broker_got()


def test_drain_takes_no_request_that_waits_for_its_turn():
    t = Transcript()
    t.client_sends(*(m.produce(number) for number in range(TURN + 10)))
    t.ends()
    t.goes_on()
    t.broker_got(*(m.produce(number) for number in range(TURN)))
    t.broker_answers(*(m.produced(number) for number in range(TURN)))
    assert t.half_closes()


def test_drain_leaves_the_fast_path():
    t = Transcript()
    t.client_sends(m.produce(1))
    t.client_sends(m.produce(2))
    t.ends()
    t.client_sends_into_the_loop(m.produce(3))
    t.broker_got(m.produce(1), m.produce(2))


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=150)
@given(
    st.lists(st.sampled_from(EXCHANGES), min_size=1, max_size=10),
    st.lists(st.tuples(st.booleans(), st.integers(1, 400)), max_size=60),
    st.integers(0, 60),
    st.sampled_from([1e9, 2_000.0, 300.0]),
)
def test_drain_forwards_exactly_what_clients_do_not_resend(exchanges, turns, end, quota):
    """The gateway forwards no request that the client will resend, and forwards every other request."""
    sent, _ = scripts(exchanges)
    t = Transcript(limits(quota, quota))
    broker = Broker(t, exchanges)
    last_word = None
    for number, turn in enumerate(turns):
        if number == end:
            t.ends()
        if number >= end and last_word is None and t.half_closes():
            last_word = len(t.client_inbox)
        sent = take_turn(t, broker, turn, sent)
    if end >= len(turns):
        t.ends()
    t.client_sends(sent)
    for _ in range(200):
        broker.answer(1 << 20)
        t.passes(60.0)
    assert last_word is not None or t.half_closes()
    assert t.socket == b""
    assert last_word in (None, len(t.client_inbox))
    wanted = [number for number, (_, response) in enumerate(exchanges) if response]
    answered = frames_of(t.client_inbox, 4)
    forwarded = frames_of(t.broker_inbox, 8)
    assert answered == wanted[: len(answered)]
    assert forwarded == sorted(set(forwarded))
    assert set(forwarded) - set(answered) == set(range(len(exchanges))) - set(wanted)


class TestMuted:
    """A muted client, in the middle of its throttle time."""

    def test_muted_client_drains_once_answered(self):
        t = Transcript(limits(produce=1_000))
        t.client_sends(m.produce(1, size=OVER))
        t.ends()
        assert not t.half_closes()
        t.broker_answers(m.produced(1))
        t.client_got(m.produced(1, throttle_time_ms=500))
        assert t.half_closes()
        assert t.now == t.core.throttle.until - 0.5

    def test_drain_does_not_forward_held_requests(self):
        t = Transcript(limits(produce=1_000))
        t.client_sends(m.produce(1, size=OVER), m.produce(2), m.metadata(3))
        t.broker_answers(m.produced(1))
        t.ends()
        t.client_sends(m.produce(4))
        assert t.half_closes()
        t.broker_got(m.produce(1, size=OVER))
        assert t.row().amount_total == OVER

    def test_elapsed_mute_begins_no_request_while_draining(self):
        t = Transcript(limits(produce=1_000))
        t.client_sends(m.produce(1, size=OVER), m.produce(2))
        t.ends()
        t.passes(1)
        t.broker_got(m.produce(1, size=OVER))
        t.broker_answers(m.produced(1))
        assert t.half_closes()
        t.broker_got()

    def test_drained_muted_connection_is_not_counted(self):
        t = Transcript(limits(produce=1_000))
        t.client_sends(m.produce(1, size=OVER))
        t.broker_answers(m.produced(1))
        t.ends()
        assert t.half_closes()
        t.core.close(t.now)
        assert t.counters.muted == 0


class TestWithoutAnswers:
    """Produce with acks=0: the client regards such a request as done."""

    @pytest.mark.parametrize("by", CHUNKS)
    def test_held_unanswered_requests_are_forwarded_and_charged(self, by):
        t = Transcript(limits(produce=1_000))
        t.client_sends(m.produce(1, acks=0, size=OVER), m.produce(2, acks=0), m.metadata(3), m.produce(4, acks=0), by=by)
        t.ends()
        t.broker_got(m.produce(1, acks=0, size=OVER))
        assert t.half_closes()
        t.broker_got(m.produce(2, acks=0), m.produce(4, acks=0))
        t.client_sends(m.produce(5, acks=0, size=OVER), m.produce(6, acks=0), m.produce(7, acks=1), m.produce(8, acks=0), by=by)
        t.broker_got(m.produce(5, acks=0, size=OVER), m.produce(6, acks=0), m.produce(8, acks=0))
        charged = [*(m.produce(number, acks=0) for number in (2, 4, 6, 8)), *[m.produce(1, acks=0, size=OVER)] * 2]
        assert t.row().amount_total == sum(len(frame) - 4 for frame in charged)
        t.client_got()
        t.passes(100)
        assert not t.paused

    @pytest.mark.parametrize("end", ["before", "after"])
    def test_many_unanswered_requests_take_several_turns(self, end):
        """Before or after the half-close."""
        frames = [m.produce(number, acks=0) for number in range(3 * TURN)]
        t = Transcript(limits(produce=1))
        t.client_sends(m.produce(5_000, acks=0))
        t.ends()
        t.broker_got(m.produce(5_000, acks=0))
        if end == "after":
            assert t.half_closes()
        t.client_sends_into_the_loop(*frames)
        if end == "before":
            assert t.half_closes()
        t.broker_got(*frames[:TURN])
        t.client_sends(m.produce(5_001, acks=0))
        t.broker_got()
        t.run_ready()
        t.broker_got(*frames[TURN : 2 * TURN])
        t.goes_on()
        t.broker_got(*frames[2 * TURN :], m.produce(5_001, acks=0))
        assert not t.paused

    def test_due_answers_precede_unanswered_requests(self):
        t = Transcript()
        t.client_sends(m.metadata(1), m.produce(2, acks=0))
        t.ends()
        t.client_sends(m.produce(3, acks=0))
        t.broker_got(m.metadata(1), m.produce(2, acks=0))
        assert not t.half_closes()
        t.broker_answers(m.described(1, []))
        assert t.half_closes()
        t.broker_got(m.produce(3, acks=0))

    def test_paused_unanswered_request_is_not_forwarded(self):
        """The disks are full."""
        gate = ProduceGate()
        t = Transcript(gate=gate)
        t.client_sends(m.produce(1, acks=0))
        t.broker_got(m.produce(1, acks=0))
        gate.delay, gate.paused = 5.0, True
        t.engine.recall()
        t.client_sends(m.produce(2, acks=0))
        t.ends()
        assert t.half_closes()
        t.client_sends(m.produce(3, acks=0))
        gate.delay, gate.paused = 0.0, False
        t.passes(5.0)
        t.broker_got()

    def test_exempt_unanswered_request_is_forwarded_in_a_pause(self):
        exempt = EntityQuota(ClientQuotaEntity(None, "etl"), {}, exempt_from=(VOLUMES,))
        gate = ProduceGate()
        gate.delay, gate.paused = 5.0, True
        t = Transcript(QuotaSettings((exempt,)), gate=gate)
        t.ends()
        assert t.half_closes()
        t.client_sends(m.produce(1, acks=0))
        t.broker_got(m.produce(1, acks=0))

    def test_collected_unanswered_request_is_forwarded(self):
        t = Metered()
        t.goes_over()
        frame = produce_to(1, (COLD, {0: m.batch(100)}), acks=0)
        t.client_sends(frame[:-5])
        t.ends()
        assert t.half_closes()
        t.broker_got()
        t.client_sends(frame[-5:])
        t.broker_got(produce_to(1, (COLD, {0: m.batch(100)}), acks=1))

    def test_drain_waits_for_the_results_of_an_unanswered_request(self):
        t = Metered()
        t.client_sends(produce_to(1, (HOT, {0: m.batch(100)}), acks=0))
        t.ends()
        assert not t.half_closes()
        t.broker_answers(produced(1, (HOT, {0: 0})))
        assert t.half_closes()
        t.client_got()

    def test_unanswered_request_counts_for_its_topics(self):
        t = Metered()
        t.ends()
        assert t.half_closes()
        t.client_sends(produce_to(1, (HOT, {0: m.batch(100)}), acks=0))
        t.core.close(t.now)
        t.broker_got(produce_to(1, (HOT, {0: m.batch(100)}), acks=1))
        t.broker_answers(produced(1, (HOT, {0: 0})))
        assert t.counted()[HOT][0] == 100


class TestOpened:
    """Requests that Weir intercepts."""

    @pytest.mark.parametrize("by", CHUNKS)
    def test_collected_request_has_not_begun(self, by):
        t, made = opened(forwards=request(2, "other"))
        frame = request(2)
        t.client_sends(frame[:-5], by=by)
        t.ends()
        t.client_sends_into_the_loop(frame[-5:-1])
        assert t.half_closes()
        t.client_sends(frame[-1:] + request(3), m.produce(4, acks=0), by=by)
        assert made[0].seen == []
        t.broker_got(m.produce(4, acks=0))

    def test_undecided_request_is_decided_and_answered(self):
        t, made = opened(is_ready=False, answers=answer(2))
        t.client_sends(request(2), m.heartbeat(3))
        t.ends()
        assert not t.half_closes()
        made[0].is_ready = True
        made[0].connection.ready()
        t.run_ready()
        t.client_got(answer(2))
        assert t.half_closes()
        t.broker_got()

    def test_drain_waits_for_local_answer_behind_response(self):
        t, _ = opened(answers=answer(2))
        t.client_sends(m.heartbeat(1), request(2))
        t.ends()
        assert not t.half_closes()
        t.broker_answers(m.beat(1))
        t.client_got(m.beat(1), answer(2))
        assert t.half_closes()


class TestAuthenticating:
    """A client that has not authenticated yet."""

    @pytest.mark.parametrize("version", [0, 1])
    def test_drain_ends_between_sasl_steps(self, version):
        t = authenticating(required=True)
        t.client_sends(handshake(1, "PLAIN", version=version))
        t.ends()
        assert not t.half_closes()
        t.broker_answers(handshaken(1, version=version))
        t.client_got(handshaken(1, version=version))
        t.broker_got(handshake(1, "PLAIN", version=version))
        assert t.half_closes()

    @pytest.mark.parametrize("by", CHUNKS)
    def test_late_token_is_not_forwarded(self, by):
        t = authenticating(required=True)
        t.client_sends(handshake(1, "PLAIN", version=0))
        t.broker_answers(handshaken(1, version=0))
        t.broker_got(handshake(1, "PLAIN", version=0))
        t.ends()
        assert t.half_closes()
        t.client_sends(raw(b"\0alice\0secret"), m.produce(2, acks=0), by=by)
        t.broker_got()


def test_draining_client_waits_for_no_debt():
    engine = QuotaEngine(limits(produce=1_000), START)
    bucket_of(engine, "produce", "ANONYMOUS", "etl", START).charge(20_000, START)
    waiting, late = Transcript(engine=engine), Transcript(engine=engine)
    waiting.client_sends(m.produce(1, acks=0))
    waiting.broker_got()
    for t in (waiting, late):
        t.ends()
        assert t.half_closes()
    late.client_sends(m.produce(2, acks=0))
    waiting.broker_got(m.produce(1, acks=0))
    late.broker_got(m.produce(2, acks=0))


def test_muted_client_is_read_to_its_end_when_drained():
    t = Transcript(limits(produce=1_000))
    t.client_sends(m.produce(1, size=OVER, acks=0))
    t.core.requests.pause_for_client()
    t.ends()
    assert t.half_closes()
    t.core.client_reads(t.now)
    assert not t.paused
