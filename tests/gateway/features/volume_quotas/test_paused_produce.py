"""Produce while the cluster's volumes fill up, as a transcript: delayed, refused at once, and passed again."""

from dataclasses import replace

import pytest

from gateway.features.ledger.fold import ThrottleFolds
from gateway.proxy.handlers.produce import MAX_REFUSED, PAUSED_MESSAGE
from gateway.proxy.in_flight import MAX_IN_FLIGHT
from gateway.proxy.produce_gate import ProduceGate
from gateway.quotas.entity import VOLUMES, ClientQuotaEntity, EntityQuota
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.settings import QuotaSettings
from protocol.api_keys import ApiKey
from protocol.error_codes import ErrorCode
from protocol.errors import InvalidFrame
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import START, Transcript, limits

VERSIONS = [0, 3, 7, 8, 9, 12, 13]
MUTED = 5.0
USAGE = "__weir_volume_usage"


class Gated(Transcript):
    """A session with a gate that the test opens and closes."""

    def __init__(self, settings=None):
        self.gate = ProduceGate()
        self.recorder = ThrottleFolds()
        self.own_topics = OwnTopics()
        super().__init__(settings or limits(), gate=self.gate, recorder=self.recorder, own_topics=self.own_topics)

    def set(self, delay, *, paused=False, learning=False):
        self.gate.delay, self.gate.paused, self.gate.learning = delay, paused, learning
        self.engine.recall()
        self.core.reconsider(self.now)
        self.passes(0.0)


def refused(correlation_id, *, version=9):
    """The answer to `messages.produce` that refuses it."""
    answer = {"index": 0, "error_code": ErrorCode.NOT_ENOUGH_REPLICAS, "base_offset": -1}
    if version >= 8:
        answer["error_message"] = PAUSED_MESSAGE
    values = {"responses": [m._topic(version, "name") | {"partition_responses": [answer]}]}
    if version >= 1:
        values["throttle_time_ms"] = int(MUTED * 1000)
    return m.codec.encode_response(ApiKey.PRODUCE, version, values, correlation_id)


def test_paused_produce_with_too_many_partitions_ends_connection():
    t = Gated()
    t.set(MUTED, paused=True)
    partitions = [{"index": index, "records": b""} for index in range(20_000)]
    values = {"acks": 1, "timeout_ms": 1, "topic_data": [{"name": m.TOPIC, "partition_data": partitions}]}
    t.client_sends(m.codec.encode_request(ApiKey.PRODUCE, 9, values, 1, "etl"))
    with pytest.raises(InvalidFrame, match="send several requests"):
        t.goes_on()


def test_open_gate_keeps_fast_path():
    t = Gated()
    t.client_sends(m.produce(1), m.produce(2), m.produce(3))
    t.broker_got(m.produce(1), m.produce(2), m.produce(3))
    assert t.core.client.hot_buckets


@pytest.mark.parametrize("version", VERSIONS)
def test_throttled_produce_is_forwarded_and_mutes_client(version):
    t = Gated()
    t.client_sends(m.produce(1, version=version))
    t.set(0.5)
    t.client_sends(m.produce(2, version=version), m.produce(3, version=version))
    t.broker_got(m.produce(1, version=version), m.produce(2, version=version))
    t.broker_answers(m.produced(1, version=version), m.produced(2, version=version))
    throttled = {"throttle_time_ms": 500} if version >= 1 else {}
    t.client_got(m.produced(1, version=version, **throttled), m.produced(2, version=version, **throttled))
    t.passes(0.5)
    t.broker_got(m.produce(3, version=version))
    assert (t.gate.throttled_total, t.gate.totals.seconds) == (2, 1.0)


def test_delays_and_refusals_are_recorded_for_volumes():
    t = Gated()
    t.set(0.5)
    t.client_sends(m.produce(1))
    t.broker_answers(m.produced(1))
    t.passes(0.5)
    t.set(MUTED, paused=True)
    t.client_sends(m.produce(2))
    (event,) = t.recorder.take("weir-1", t.now, t.now)
    assert (event.kind, event.quota, event.count, event.throttle_ms, event.throttle_max_ms) == ("volume", None, 2, 5_500, 5_000)


def test_longer_of_both_delays_applies():
    t = Gated(limits(produce=1_000))
    t.set(0.2)
    t.client_sends(m.produce(1, size=10_500))
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1, throttle_time_ms=500))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("by", [None, 1, 40])
def test_paused_produce_is_refused_at_once_and_client_muted(version, by):
    t = Gated()
    t.set(MUTED, paused=True)
    t.client_sends(m.produce(1, version=version, size=300), by=by)
    t.client_got(refused(1, version=version))
    assert t.paused
    t.client_sends(m.produce(2, version=version))
    t.passes(MUTED - 0.1)
    t.client_got()
    t.passes(0.1)
    t.client_got(refused(2, version=version))
    t.broker_got()
    assert (t.gate.refused_total, t.row().amount_total, t.gate.totals.seconds) == (2, 0, 2 * MUTED)


def test_client_whose_chunks_end_inside_requests_is_muted():
    t = Gated()
    t.set(MUTED, paused=True)
    request = m.produce(1, size=300)
    t.client_sends(request + request[:200])
    while not t.paused:
        t.client_sends(request[200:] + request[:200])
        t.goes_on()
    assert t.gate.refused_total == MAX_REFUSED + 1


@pytest.mark.parametrize("version", VERSIONS)
def test_pipelined_produce_is_refused_before_the_mute(version):
    t = Gated()
    t.set(MUTED, paused=True)
    t.client_sends(*(m.produce(number, version=version) for number in range(5)))
    t.client_got(*(refused(number, version=version) for number in range(5)))
    assert t.paused


def test_requests_of_several_turns_are_refused_before_the_mute():
    """After some 16 KiB of opened requests, the next ones wait for the event loop's next turn."""
    t = Gated()
    t.set(MUTED, paused=True)
    t.client_sends(*(m.produce(number, size=10_000) for number in range(5)))
    assert t.called_ready
    t.goes_on()
    t.client_got(*(refused(number) for number in range(5)))
    assert t.core.throttle.active


def test_requests_left_in_the_socket_are_refused_before_the_mute():
    """Two chunks: the second one is still in the socket when the first one has been refused."""
    t = Gated()
    t.set(MUTED, paused=True)
    first, second = m.produce(1), m.produce(2)
    t.socket = second
    t.core.requests.feed(first, t.now)
    t.client_got(refused(1))
    assert not t.paused
    t._read_socket()
    t.client_got(refused(2))
    assert t.paused


class Eager(Gated):
    """A session whose client has its next request in the socket as soon as an answer is written."""

    def write_client(self, data):
        super().write_client(data)
        if not self.paused:
            self.socket = m.produce(2)


def test_request_sent_after_a_refusal_waits_for_the_mute():
    t = Eager()
    t.set(MUTED, paused=True)
    t.client_sends(m.produce(1))
    t.client_got(refused(1))
    assert t.paused
    assert t.socket == m.produce(2)


def test_flood_is_muted_at_the_in_flight_limit():
    t = Gated()
    t.set(MUTED, paused=True)
    frame = m.produce(1)
    t.socket = frame * MAX_IN_FLIGHT  # never empty: the client sends faster than it is read
    for _ in range(MAX_IN_FLIGHT):
        t.core.requests.feed(frame, t.now)
    assert not t.paused
    t.core.requests.feed(frame, t.now)
    assert t.paused
    assert t.gate.refused_total == MAX_IN_FLIGHT + 1


def test_end_of_pause_unmutes_clients():
    t = Gated()
    t.set(MUTED, paused=True)
    t.client_sends(m.produce(1), m.heartbeat(2))
    t.client_got(refused(1))
    t.client_sends(m.produce(3))
    t.passes(1)
    t.broker_got(m.heartbeat(2))
    t.set(0.0)
    t.broker_got(m.produce(3))
    assert not t.paused


def test_quota_mute_outlasts_a_pause():
    t = Gated(limits(produce=1_000))
    t.client_sends(m.produce(1, acks=0, size=20_000))
    t.set(MUTED, paused=True)
    t.client_sends(m.produce(2))
    t.set(0.0)
    t.passes(9.9)
    assert t.paused
    t.passes(0.2)
    t.broker_got(m.produce(1, acks=0, size=20_000), m.produce(2))


def test_answers_from_before_a_pause_precede_the_refusal():
    t = Gated()
    t.client_sends(m.produce(1))
    t.set(MUTED, paused=True)
    t.client_sends(m.produce(2))
    t.broker_got(m.produce(1))
    t.client_got()
    t.passes(1)
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1, throttle_time_ms=4_000), refused(2))


def test_requests_behind_a_refused_one_are_answered():
    t = Gated()
    t.set(MUTED, paused=True)
    t.client_sends(m.produce(1), m.heartbeat(2), m.produce(3))
    t.broker_got(m.heartbeat(2))
    t.client_got(refused(1))
    t.broker_answers(m.beat(2))
    t.client_got(m.beat(2, throttle_time_ms=5_000), refused(3))
    t.passes(MUTED)
    assert not t.paused


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
@pytest.mark.parametrize("quota", [None, 1_000])
def test_volume_delay_is_shortened_only_by_volumes(algorithm, quota):
    t = Gated(limits(produce=quota, algorithm=algorithm))
    t.set(4.0)
    t.client_sends(m.produce(1))
    t.broker_answers(m.produced(1))
    t.passes(1.0)
    t.configure(limits(produce=quota, algorithm=algorithm))
    t.passes(1.0)
    assert t.paused
    t.gate.delay = 0.5
    t.core.reconsider(t.now)
    t.passes(0.4)
    assert t.paused
    t.passes(0.2)
    assert not t.paused


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("quota", [None, 1_000])
@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_exemption_from_volumes_ends_mute_at_once(paused, quota, algorithm):
    t = Gated(limits(produce=quota, algorithm=algorithm))
    t.set(MUTED, paused=paused)
    t.client_sends(m.produce(1, acks=0, size=300))
    t.broker_got(*([] if paused else [m.produce(1, acks=0, size=300)]))
    t.passes(1.0)
    assert t.paused
    (row,) = limits(produce=quota).quotas
    t.configure(QuotaSettings((replace(row, exempt_from=(VOLUMES,)),), algorithm=algorithm))
    t.passes(0.0)
    t.broker_got(*([m.produce(1, acks=0, size=300)] if paused else []))
    assert not t.paused


def test_other_requests_pass_while_producers_are_paused():
    t = Gated()
    t.set(MUTED, paused=True)
    t.client_sends(m.heartbeat(1), m.fetch(2))
    t.broker_got(m.heartbeat(1), m.fetch(2))


@pytest.mark.parametrize("by", [None, 1, 40])
def test_unanswered_produce_waits_for_end_of_pause(by):
    t = Gated()
    t.set(MUTED, paused=True)
    t.client_sends(m.produce(1, acks=0, size=300), m.heartbeat(2), by=by)
    for _ in range(3):
        t.passes(MUTED)
        t.broker_got()
    (event,) = t.recorder.take("weir-1", t.now, t.now)
    assert (event.kind, event.count, event.throttle_ms) == ("volume", 4, 20_000)
    t.set(0.0)
    t.passes(MUTED)
    t.broker_got(m.produce(1, acks=0, size=300), m.heartbeat(2))
    assert t.row().amount_total == 300
    assert not t.paused


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("by", [None, 1, 40])
def test_produce_waits_for_the_first_verdict(acks, by):
    t = Gated()
    t.set(0.5, paused=True, learning=True)
    t.client_sends(m.produce(1, acks=acks, size=300), by=by)
    t.passes(2.0)
    t.broker_got()
    t.client_got()
    t.set(0.0)
    t.broker_got(m.produce(1, acks=acks, size=300))
    assert (t.gate.refused_total, t.paused) == (0, False)


def test_produce_is_refused_if_the_first_verdict_is_a_pause():
    t = Gated()
    t.set(0.5, paused=True, learning=True)
    t.client_sends(m.produce(1))
    t.set(MUTED, paused=True)
    t.passes(0.5)
    t.client_got(refused(1))
    t.broker_got()


@pytest.mark.parametrize("delay", [1.0, MUTED])
@pytest.mark.parametrize("version", VERSIONS)
def test_own_topic_and_exempt_clients_pass(delay, version):
    exempt = EntityQuota(ClientQuotaEntity(None, "internal"), {}, exempt_from=("volumes",))
    t = Gated(QuotaSettings((exempt,)))
    t.set(delay, paused=delay == MUTED)
    t.client_sends(m.produce(1, version=version, client_id="internal"))
    t.broker_got(m.produce(1, version=version, client_id="internal"))
    t.own_topics.rename([USAGE])
    t.own_topics.identify(USAGE, m.topic_id(USAGE))
    t.engine.recall()
    t.client_sends(m.produce(2, version=version, topics=(USAGE,)))
    t.broker_got(m.produce(2, version=version, topics=(USAGE,)))
    assert t.now == START
    assert not t.paused
    assert t.gate.totals.seconds == 0.0


@pytest.mark.parametrize("exempt_from", [(), ("rates",), ("rates", "topics")])
def test_exemption_from_rates_does_not_pass_a_pause(exempt_from):
    t = Gated(QuotaSettings((EntityQuota(ClientQuotaEntity(None, "etl"), {}, exempt=True, exempt_from=exempt_from),)))
    t.set(MUTED, paused=True)
    t.client_sends(m.produce(1))
    t.broker_got()


def test_exemption_follows_client_id_and_settings():
    exempt = EntityQuota(ClientQuotaEntity(None, "internal"), {}, exempt_from=("volumes",))
    t = Gated(QuotaSettings((exempt,)))
    t.set(MUTED, paused=True)
    t.client_sends(m.produce(1, client_id="internal"))
    t.broker_got(m.produce(1, client_id="internal"))
    t.engine.apply(QuotaSettings(), t.now)
    t.client_sends(m.produce(2, client_id="internal"))
    t.broker_got()


def test_partly_received_request_passes_at_end_of_pause():
    t = Gated()
    t.set(MUTED, paused=True)
    frame = m.produce(1, size=300)
    t.client_sends(frame[:200])
    t.set(0.0)
    t.client_sends(frame[200:], m.produce(2))
    t.broker_got(frame, m.produce(2))
