"""Produce while the cluster's volumes fill up, as a transcript: delayed, refused after a while, and open again."""

import pytest

from gateway.observe.ledger.fold import ThrottleFolds
from gateway.quotas.engine import QuotaSettings
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.own_topics import OwnTopics
from gateway.session.exchanges.paused_produce import MESSAGE, NOT_ENOUGH_REPLICAS, PauseRoom
from gateway.session.gate import ProduceGate
from protocol.api_keys import ApiKey
from tests.gateway.session import messages as m
from tests.gateway.session.transcript import START, Transcript, limits

VERSIONS = [0, 3, 7, 8, 9, 12, 13]
KEPT = 5.0
USAGE = "__weir_volume_usage"


class Gated(Transcript):
    """A session with a gate that the test opens and closes."""

    def __init__(self, settings=None):
        self.gate = ProduceGate()
        self.room = PauseRoom(self.gate)
        self.told = ThrottleFolds()
        self.own_topics = OwnTopics()
        super().__init__(settings or limits(), gate=self.gate, recorder=self.told, own_topics=self.own_topics)

    def set(self, delay, *, paused=False):
        self.gate.delay, self.gate.paused = delay, paused
        self.engine.recall()
        self.releases()

    def releases(self):
        self.room.release(self.now)
        if self.called_ready:
            self.goes_on()


def refused(correlation_id, *, version=9):
    """The answer to `messages.produce` that refuses it."""
    answer = {"index": 0, "error_code": NOT_ENOUGH_REPLICAS, "base_offset": -1}
    if version >= 8:
        answer["error_message"] = MESSAGE
    values = {"responses": [m._topic(version, "name") | {"partition_responses": [answer]}]}
    return m.codec.encode_response(ApiKey.PRODUCE, version, values, correlation_id)


def test_open_costs_nothing_and_changes_nothing():
    t = Gated()
    t.client_sends(m.produce(1), m.produce(2), m.produce(3))
    t.broker_got(m.produce(1), m.produce(2), m.produce(3))
    assert t.core.client.hot_bucket is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_throttled_produce_goes_on_and_its_client_is_held(version):
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


def test_delays_and_refusals_are_told_of_as_the_volumes():
    t = Gated()
    t.set(0.5)
    t.client_sends(m.produce(1))
    t.broker_answers(m.produced(1))
    t.passes(0.5)
    t.set(KEPT, paused=True)
    t.client_sends(m.produce(2))
    (event,) = t.told.take("weir-1", t.now, t.now)
    assert (event.kind, event.quota, event.count, event.throttle_ms, event.throttle_max_ms) == ("volume", None, 2, 5_500, 5_000)


def test_the_longer_of_the_two_delays_holds():
    t = Gated(limits(produce=1_000))
    t.set(0.2)
    t.client_sends(m.produce(1, size=10_500))
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1, throttle_time_ms=500))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("by", [None, 1, 40])
def test_a_paused_produce_is_refused_after_a_while_and_never_seen_by_its_broker(version, by):
    t = Gated()
    t.set(KEPT, paused=True)
    t.client_sends(m.produce(1, version=version, size=300), m.produce(2, version=version), by=by)
    t.passes(KEPT - 1)
    t.releases()
    t.client_got()
    t.passes(1)
    t.releases()
    t.client_got(refused(1, version=version), refused(2, version=version))
    t.broker_got()
    assert (t.gate.refused_total, t.row().amount_total) == (2, 0)


def test_the_end_of_a_pause_tells_those_who_wait_at_once_and_lets_the_next_ones_pass():
    t = Gated()
    t.set(KEPT, paused=True)
    t.client_sends(m.produce(1))
    t.passes(1)
    t.set(0.0)
    t.client_got(refused(1))
    t.client_sends(m.produce(2))
    t.broker_got(m.produce(2))


def test_what_was_sent_before_the_pause_is_answered_before_the_refusal():
    t = Gated()
    t.client_sends(m.produce(1))
    t.set(KEPT, paused=True)
    t.client_sends(m.produce(2))
    t.passes(KEPT)
    t.releases()
    t.broker_got(m.produce(1))
    t.client_got()
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1), refused(2))


def test_what_waits_behind_a_refusal_goes_on_when_the_answer_before_that_has_come():
    t = Gated()
    t.client_sends(m.produce(1))
    t.set(KEPT, paused=True)
    t.client_sends(m.produce(2))
    t.client_sends(m.heartbeat(3))
    t.broker_got(m.produce(1))
    t.set(0.0)  # the refusal is there, and has to wait for the broker's answer
    t.client_got()
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1), refused(2))
    t.broker_got(m.heartbeat(3))
    assert not t.paused


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
@pytest.mark.parametrize("quota", [None, 1_000])
def test_a_delay_of_the_volumes_lasts_until_they_ask_for_less_and_no_quota_shortens_it(algorithm, quota):
    t = Gated(limits(produce=quota, algorithm=algorithm))
    t.set(4.0)
    t.client_sends(m.produce(1))
    t.broker_answers(m.produced(1))
    t.passes(1.0)
    t.configure(limits(produce=quota, algorithm=algorithm))
    t.passes(1.0)
    assert t.paused
    t.gate.delay = 0.5
    t.core.throttle.reconsider(t.now)
    t.passes(0.4)
    assert t.paused
    t.passes(0.2)
    assert not t.paused


@pytest.mark.parametrize("by", [None, 1, 40])
def test_requests_behind_a_refused_one_wait_for_its_answer_and_are_not_lost(by):
    t = Gated()
    t.set(KEPT, paused=True)
    t.client_sends(m.produce(1), m.heartbeat(2), m.produce(3), by=by)
    t.broker_got()
    t.passes(KEPT)
    t.releases()
    t.client_got(refused(1))
    t.broker_got(m.heartbeat(2))
    t.broker_answers(m.beat(2))
    t.client_got(m.beat(2))
    t.passes(KEPT)
    t.releases()
    t.client_got(refused(3))
    assert not t.paused


def test_other_requests_pass_while_producers_are_paused():
    t = Gated()
    t.set(KEPT, paused=True)
    t.client_sends(m.heartbeat(1), m.fetch(2))
    t.broker_got(m.heartbeat(1), m.fetch(2))


@pytest.mark.parametrize("by", [None, 1, 40])
def test_a_request_that_wants_no_answer_is_put_off_until_the_pause_is_over(by):
    t = Gated()
    t.set(KEPT, paused=True)
    t.client_sends(m.produce(1, acks=0, size=300), m.heartbeat(2), by=by)
    for _ in range(3):
        t.passes(KEPT)
        t.broker_got()
    t.set(0.0)
    t.passes(KEPT)
    t.broker_got(m.produce(1, acks=0, size=300), m.heartbeat(2))
    assert t.row().amount_total == 300
    assert not t.paused


@pytest.mark.parametrize("delay", [1.0, KEPT])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_usage_topic_and_exempt_clients_pass(delay, version):
    exempt = EntityQuota(ClientQuotaEntity(None, "internal"), {}, exempt_from=("volumes",))
    t = Gated(QuotaSettings((exempt,)))
    t.set(delay, paused=delay == KEPT)
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
    t.set(KEPT, paused=True)
    t.client_sends(m.produce(1))
    t.broker_got()


def test_exemption_follows_client_id_and_settings():
    exempt = EntityQuota(ClientQuotaEntity(None, "internal"), {}, exempt_from=("volumes",))
    t = Gated(QuotaSettings((exempt,)))
    t.set(KEPT, paused=True)
    t.client_sends(m.produce(1, client_id="internal"))
    t.broker_got(m.produce(1, client_id="internal"))
    t.engine.apply(QuotaSettings(), t.now)
    t.client_sends(m.produce(2, client_id="internal"))
    t.broker_got()


def test_a_pause_ends_the_way_of_a_request_that_has_come_in_part():
    t = Gated()
    t.set(KEPT, paused=True)
    frame = m.produce(1, size=300)
    t.client_sends(frame[:200])
    t.set(0.0)
    t.client_sends(frame[200:], m.produce(2))
    t.broker_got(frame, m.produce(2))
