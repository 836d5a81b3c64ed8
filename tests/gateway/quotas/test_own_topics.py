"""Produce to topics of Weir's own, as a transcript: not charged to any client, within bounds."""

import pytest

from gateway.features.topic_quotas.produce_inspector import TopicInspection
from gateway.features.topic_quotas.rules import TopicQuotas, TopicSettings
from gateway.proxy.produce_gate import ProducedTopics
from gateway.quotas.meter import Window
from gateway.quotas.own_topics import FREE_BURST_SECONDS, FREE_BYTES_PER_SECOND, OwnTopics, mark_at
from gateway.steps import at_once
from tests.gateway.features.topic_quotas.listing import list_topics
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import START, Transcript, limits
from tests.gateway.quotas.engines import rows_of

VERSIONS = range(14)
OWN, OTHER, LONG = "__weir_usage", "__weir_usage2", "o" * 200


class Owner(Transcript):
    """A session of a gateway with two topics of its own, for a client with `produce` bytes per second."""

    def __init__(self, produce: float = 100, **rest):
        self.own = OwnTopics([OWN, LONG], START, on_change=lambda: self.engine.recall())
        super().__init__(limits(produce=produce), own_topics=self.own, **rest)
        for name in (OWN, LONG):
            self.own.identify(name, m.topic_id(name))

    @property
    def charged(self) -> int:
        return sum(row.amount_total for row in rows_of(self.engine, self.now) if row.kind == "produce")


@pytest.mark.parametrize("acks", [-1, 0])
@pytest.mark.parametrize("topic", [OWN, LONG])
@pytest.mark.parametrize("version", VERSIONS)
def test_own_topic_is_never_charged(version, topic, acks):
    t = Owner()
    frames = [m.produce(number, version=version, acks=acks, size=5_000, topics=(topic,)) for number in range(3)]
    t.client_sends(*frames)
    t.broker_got(*frames)
    assert t.charged == 0
    assert not t.paused


@pytest.mark.parametrize("chunk", [1, 7, 61, 1_000])
@pytest.mark.parametrize("version", VERSIONS)
def test_own_topic_requests_among_others_are_free(version, chunk):
    t = Owner(produce=10_000)
    own = m.produce(2, version=version, topics=(OWN,))
    others = [m.produce(number, version=version) for number in (1, 3)]
    data = others[0] + own + own + others[1]
    for at in range(0, len(data), chunk):
        t.client_sends(data[at : at + chunk])
    t.broker_got(data)
    assert t.charged == sum(len(frame) - 4 for frame in others)
    assert t.core.client.hot_buckets, "the other requests take the fast path"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("topics", [(OWN, m.TOPIC), (m.TOPIC, OWN), (OWN, LONG), (OTHER,), (OWN[:-1],)])
def test_other_topics_give_no_privilege(version, topics):
    t = Owner(produce=1)
    frame = m.produce(1, version=version, topics=topics)
    t.client_sends(frame)
    t.broker_got(frame)
    assert t.charged == len(frame) - 4
    assert t.paused


def test_free_traffic_is_bounded():
    t = Owner()
    burst = int(FREE_BYTES_PER_SECOND * FREE_BURST_SECONDS)
    size = burst // 8
    frame = m.produce(1, size=size, topics=(OWN,))
    t.client_sends(*[frame] * 8)
    assert (t.charged, t.paused) == (0, False)
    t.client_sends(frame)
    assert (t.charged, t.paused) == (size, True)
    assert size / FREE_BYTES_PER_SECOND == 2.0
    t.own.rename([OWN])
    assert not t.own.take_free(size, t.now)
    assert t.own.take_free(size, t.now + 2.0)


def test_own_topic_neither_waits_for_debt_nor_hides_it():
    """The request that follows on a new connection waits as if it were the first."""
    first = Owner()
    first.client_sends(m.produce(1, size=2_000))
    assert first.paused
    t = Owner(engine=first.engine)
    own = m.produce(1, size=500, topics=(OWN,))
    t.client_sends(own, m.produce(2))
    t.broker_got(own)
    assert t.paused
    assert t.charged == 2_000
    t.passes(10.0)
    t.broker_got(m.produce(2))


def test_reloaded_own_topic_names_apply_at_once():
    t = Owner()
    frame = m.produce(1, size=200, topics=(OTHER,))
    t.client_sends(frame)
    assert t.charged == 200
    t.own.rename([OTHER])
    t.client_sends(frame, frame)
    assert t.charged == 200
    assert t.own.keys == {OTHER.encode()}


def test_ids_are_kept_for_own_topics_only():
    own = OwnTopics([OWN])
    own.identify("payments", bytes([1]) * 16)
    own.identify(OWN, bytes(16))
    assert own.keys == {OWN.encode()}
    own.identify(OWN, bytes([2]) * 16)
    own.identify(OWN, bytes([3]) * 16)
    assert own.keys == {OWN.encode(), bytes([3]) * 16}
    assert own.prefixes(13) == (b"\2" + bytes([3]) * 16,)


class Metered(Owner):
    """The same with topic quotas: 1000 bytes a second in all."""

    def __init__(self):
        self.rejections = []
        topics = ProducedTopics()
        super().__init__(produce=1e9, topics=topics)
        settings = TopicSettings(1_000, meter="window", window=Window(2, 1.0))
        self.quotas = TopicQuotas(settings, START, own=self.own)
        self.gate = TopicInspection(self.quotas, 19, lambda rejection, now: self.rejections.append(rejection))
        topics.make_inspector = self.gate.open


@pytest.mark.parametrize("acks", [-1, 0])
@pytest.mark.parametrize("version", [3, 9, 13])
def test_topic_quotas_ignore_own_topics(version, acks):
    t = Metered()
    list_topics(t.quotas, {OWN: m.topic_id(OWN), m.TOPIC: bytes([7]) * 16, LONG: m.topic_id(LONG)})
    assert (t.quotas.default_threshold, t.quotas.totals(t.now).defaulted) == (1_000, 1)
    t.quotas.appended(m.TOPIC.encode(), 50_000, t.now, by_id=False)
    frame = m.produce(1, version=version, acks=acks, size=5_000, topics=(OWN,))
    t.client_sends(frame, frame)
    t.goes_on()
    wanting_answer = m.produce(1, version=version, acks=acks or 1, size=5_000, topics=(OWN,))
    t.broker_got(wanting_answer, wanting_answer)
    t.broker_answers(m.produced(1, version=version, topic=OWN), m.produced(1, version=version, topic=OWN))
    assert [(row.topic, row.appended_bytes) for row in at_once(t.quotas.rows(t.now))] == [(m.TOPIC, 50_000)]
    assert t.rejections == []
    assert t.charged == 0


def test_topic_quotas_ignore_own_topics_of_peers():
    t = Metered()
    t.quotas.expect([OWN, "payments"], t.now)
    assert t.quotas.peer_account("topic", LONG, t.now) is None
    assert [row.topic for row in at_once(t.quotas.rows(t.now))] == ["payments"]


@pytest.mark.parametrize(("version", "at"), [(3, 6), (8, 6), (9, 2), (12, 2), (13, 1)])
def test_first_byte_of_a_topic_follows_the_array_and_its_length(version, at):
    assert mark_at(version) == at
