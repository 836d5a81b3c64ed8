"""Producers of one topic over its share, with real sessions: each gets its part, however soon the others come again."""

from copy import copy
from dataclasses import replace
from functools import cache, partial

import pytest

from gateway.features.topic_quotas.produce_inspector import TopicInspection
from gateway.features.topic_quotas.producer_turns import PRODUCERS, TURN_SECONDS, ProducerTurns, TopicProducer
from gateway.features.topic_quotas.rules import TopicQuotas, TopicSettings
from gateway.features.topic_quotas.topic_meters import RATES, TopicUse
from gateway.proxy.produce_gate import ProducedTopics
from gateway.quotas.meter import Window
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.rate import SampledRate
from gateway.quotas.settings import QuotaSettings
from tests.gateway.features.topic_quotas.listing import list_topics
from tests.gateway.features.topic_quotas.test_produce_inspector import HOT, IDS, Metered, produce, produced
from tests.gateway.proxy.crowd import Crowd, CrowdSession, longest_gap
from tests.gateway.proxy.transcript import START

TOTAL = 200_000
WINDOW = Window(11, 1.0)
WARM = START + 30.0
SECONDS = 90.0

request_of = cache(lambda size: produce(1, (HOT, {0: b"x" * size})))
APPENDED = produced(1, (HOT, {0: 0}))

FAST = {"backoff": 0.02, "longest_backoff": 0.02}
POLITE = {"backoff": 0.1, "longest_backoff": 1.0}
"""Java's producer and librdkafka."""
STEADY = {"backoff": 0.1, "longest_backoff": 0.1}
"""The client aiokafka."""
RECONNECTS = FAST | {"reconnects": True}
"""Takes a new connection for each request."""


class Producer:
    """Sends all the time. After a rejection it waits twice as long as the last time, up to `longest_backoff` seconds."""

    def __init__(self, crowd, backoff, longest_backoff, size=8_192, reconnects=False):
        self.crowd, self.backoff, self.longest_backoff, self.size = crowd, backoff, longest_backoff, size
        self.reconnects = reconnects
        self.failures = 0
        self.appended = []
        self.session = self.connect()
        crowd.after(crowd.chance.random() / 100, self.send)

    def connect(self):
        return CrowdSession(self.crowd, lambda frame: APPENDED, self.take)

    def send(self):
        if self.reconnects:
            self.session.close()
            self.session = self.connect()
        self.session.send(request_of(self.size))

    def take(self, frame):
        wait = 0.0
        if frame == APPENDED:
            self.failures = 0
            self.appended.append(self.crowd.now)
        else:
            wait = min(self.backoff * 2**self.failures, self.longest_backoff) * (0.8 + 0.4 * self.crowd.chance.random())
            self.failures = min(self.failures + 1, 9)
        self.crowd.after(wait, self.send)

    @property
    def bytes_appended(self):
        return self.size * sum(when > WARM for when in self.appended)


def report_use(crowd, gateways):
    """Have each gateway count the bytes and the producers of the others, five times a second."""
    for gateway, _ in gateways:
        for (kind, name), account in gateway.changed():
            new, account.shared_total = account.total() - account.shared_total, account.total()
            for peer, _ in gateways:
                if peer is not gateway:
                    peer.peer_account(kind, name, crowd.now).charge_others(new, crowd.now, no_debt=False)
    reported = [dict(turns.producers(crowd.now)).get(HOT, 0) for _, turns in gateways]
    for (_, turns), own in zip(gateways, reported, strict=True):
        turns.peers = {(PRODUCERS, HOT): sum(reported) - own}
    crowd.after(0.2, partial(report_use, crowd, gateways))


def crowd_of(*gateways):
    """The producers of each gateway."""
    crowd = Crowd(QuotaSettings())
    found, quotas = [], []
    for producers in gateways:
        of_gateway = TopicQuotas(TopicSettings(TOTAL, meter="window", window=WINDOW), START, own=OwnTopics())
        list_topics(of_gateway, IDS)
        crowd.context = copy(crowd.context)
        crowd.context.topics = topics = ProducedTopics()
        inspection = TopicInspection(of_gateway, 19, lambda rejection, now: None)
        topics.make_inspector = inspection.open
        found += [Producer(crowd, **each) for each in producers]
        quotas.append((of_gateway, inspection.turns))
    report_use(crowd, quotas)
    crowd.run(SECONDS)
    return found


@pytest.mark.parametrize(
    "gateways",
    [
        [[FAST, POLITE]],
        [[FAST, STEADY]],
        [[FAST, *[POLITE] * 4]],
        [[*[FAST] * 4, POLITE]],
        [[FAST | {"size": 100_000}, POLITE | {"size": 1_000}]],
        [[POLITE | {"size": 100_000}, POLITE | {"size": 1_000}]],
        [[RECONNECTS, POLITE]],
        [[*[RECONNECTS] * 4, POLITE]],
        [[FAST], [POLITE] * 2],
        [[FAST | {"size": 100_000}], [POLITE | {"size": 1_000}]],
        [[FAST], [POLITE] * 4],
        [[*[FAST] * 4, POLITE], [POLITE]],
        [[POLITE] * 8, [POLITE]],
        [[FAST], *[[POLITE]] * 4],
    ],
    ids=[
        "polite",
        "steady",
        "one fast",
        "one polite",
        "sizes",
        "polite sizes",
        "reconnects",
        "many reconnect",
        "gateways",
        "gateways sizes",
        "gateway of four",
        "gateway of one",
        "gateways of eight and one",
        "five gateways",
    ],
)
def test_each_producer_gets_its_part(gateways):
    """Before, a producer that came again after 5 ms got 24 times the bytes of one with Kafka's back-off."""
    found = crowd_of(*gateways)
    whole = sum(each.bytes_appended for each in found)
    assert whole >= 0.9 * TOTAL * (SECONDS - 30.0)
    assert min(each.bytes_appended for each in found) >= 0.5 * whole / len(found)
    assert max(longest_gap(each.appended, START + SECONDS, WARM) for each in found) <= 2 * WINDOW.length


def comes_within_its_share(t, **changes):
    """A reload raises the total, and so the topic's share."""
    t.gate.quotas.apply(replace(t.gate.quotas.settings, total=20_000, **changes), t.now)


def test_lone_producer_is_rejected_only_over_its_share():
    t = Metered()
    t.goes_over()
    t.client_sends(produce(1, (HOT, {0: b"x" * 300})))
    t.broker_got()
    comes_within_its_share(t)
    for number in range(2, 12):
        t.client_sends(produce(number, (HOT, {0: b"x" * 20_000})))
        t.goes_on()
        t.broker_got(produce(number, (HOT, {0: b"x" * 20_000})))


def hot_topic():
    return TopicUse(HOT, RATES["one_minute"](WINDOW, START), labelled=True)


OF_OWNER = {name: TopicProducer(f"user={name}") for name in "ab"}


def rejected(turns, use, threshold=100.0):
    """Let producers come while the topic is over its share, and return a function that lets one come when it is not."""
    assert all(turns.refuses(HOT, use, producer, 10, threshold, START, over=True) for producer in OF_OWNER.values())
    return lambda name, size, now: turns.refuses(HOT, use, OF_OWNER[name], size, threshold, now, over=False)


def test_producer_beyond_its_part_waits_for_others():
    refuses = rejected(ProducerTurns(), hot_topic())
    assert not refuses("a", size=100, now=START + 0.1)
    assert not refuses("a", size=50, now=START + 0.2)
    assert refuses("a", size=1, now=START + 0.3)
    assert not refuses("b", size=200, now=START + 0.4)
    assert not refuses("a", size=500, now=START + 0.5)  # the next round
    assert [refuses(each, size=1, now=START + 0.6) for each in "ba"] == [False, True]


def test_nobody_waits_for_absent_producers_for_long():
    turns = ProducerTurns()
    refuses = rejected(turns, hot_topic())
    assert not refuses("a", size=1_000, now=START + 0.1)
    assert turns.contested(START + 0.2)
    assert [refuses("a", size=1, now=START + after) for after in (TURN_SECONDS - 0.1, TURN_SECONDS)] == [True, False]
    assert not turns.contested(START + TURN_SECONDS)


def test_producers_wait_for_those_of_peers():
    """Peers that do not report the number of their producers have one part together."""
    use = hot_topic()
    use.elsewhere = SampledRate(WINDOW)
    use.charge_others(1_000, START - 1.0, no_debt=False)
    refuses = rejected(ProducerTurns(), use)
    assert [refuses(each, size=150, now=START + 0.1) for each in "abab"] == [False, False, True, True]
    use.charge_others(150, START + 0.2, no_debt=False)
    assert [refuses(each, size=300, now=START + 0.3) for each in "abab"] == [False, False, True, True]


def test_producers_of_peers_have_a_part_each():
    """The bytes that came before their number was known are divided among them."""
    use, turns = hot_topic(), ProducerTurns()
    use.elsewhere = SampledRate(WINDOW)
    use.charge_others(1_000, START - 1.0, no_debt=False)
    refuses = rejected(turns, use)
    use.charge_others(200, START, no_debt=False)
    assert [refuses(each, size=150, now=START + 0.1) for each in "ab"] == [False, False]
    turns.peers = {(PRODUCERS, HOT): 3}
    assert [refuses(each, size=150, now=START + 0.2) for each in "ab"] == [True, True]
    use.charge_others(250, START + 0.2, no_debt=False)
    assert [refuses(each, size=180, now=START + 0.3) for each in "abab"] == [False, False, True, True]


def test_producers_with_turns_are_reported():
    turns = ProducerTurns()
    rejected(turns, hot_topic())
    assert list(turns.producers(START + 1.0)) == [(HOT, 2)]
    turns.leave(OF_OWNER["a"])
    assert list(turns.producers(START + 1.0)) == [(HOT, 1)]
    assert not list(turns.producers(START + TURN_SECONDS))


def test_new_connection_takes_the_place_that_its_owner_left():
    turns, use = ProducerTurns(), hot_topic()
    refuses = rejected(turns, use)
    assert not refuses("a", size=150, now=START + 0.1)
    turns.leave(OF_OWNER["a"])
    again, other = TopicProducer(OF_OWNER["a"].owner), TopicProducer("user=c")
    assert [turns.refuses(HOT, use, each, 1, 100.0, START + 0.2, over=False) for each in (again, other)] == [True, False]


def test_nobody_waits_for_a_connection_that_has_ended():
    turns = ProducerTurns()
    refuses = rejected(turns, hot_topic())
    assert [refuses("a", size=150, now=START + 0.1) for _ in range(2)] == [False, True]
    turns.leave(OF_OWNER["b"])
    assert not refuses("a", size=150, now=START + 0.2)


def test_topic_within_its_share_has_no_turns():
    turns = ProducerTurns()
    rejected(turns, hot_topic())
    cold = hot_topic()
    assert not any(turns.refuses("cold", cold, OF_OWNER["a"], 10_000, 1.0, START + 0.1, over=False) for _ in range(3))


def test_topic_without_a_threshold_left_has_turns():
    refuses = rejected(ProducerTurns(), hot_topic(), threshold=0.0)
    assert [refuses(each, size=10, now=START + 0.1) for each in "aabab"] == [False, True, False, False, False]


def test_places_of_producers_are_bounded():
    """The round that began first ends, and its producers have no turns."""
    turns = ProducerTurns(max_places=3)
    first = rejected(turns, hot_topic())
    assert not first("a", size=1_000, now=START + 0.1)
    second = rejected(turns, hot_topic())
    assert not second("a", size=1_000, now=START + 0.1)
    assert [refuses("a", size=1, now=START + 0.2) for refuses in (first, second)] == [False, True]


def over_its_share_with_two_producers():
    t = Metered()
    t.goes_over()
    t.client_sends(produce(1, (HOT, {0: b"x" * 3_000})))
    t.goes_on()
    other = Metered(engine=t.engine)
    other.gate, other.topics.make_inspector = t.gate, t.gate.open
    other.client_sends(produce(1, (HOT, {0: b"x"})))
    return t


def test_rejection_for_a_turn_ends_no_unanswered_producer():
    """With acks=0, a rejection closes the connection."""
    t = over_its_share_with_two_producers()
    comes_within_its_share(t)
    for number, acks, passes in ((2, -1, True), (3, -1, False), (4, 0, True)):
        t.broker_inbox.clear()
        t.client_sends(produce(number, (HOT, {0: b"x" * 20_000}), acks=acks))
        t.goes_on()
        assert bool(t.broker_inbox) is passes


def test_rate_over_a_minute_rejects_only_over_the_share():
    t = over_its_share_with_two_producers()
    comes_within_its_share(t, meter="one_minute")
    for number in (2, 3):
        t.broker_inbox.clear()
        t.client_sends(produce(number, (HOT, {0: b"x" * 20_000})))
        t.goes_on()
        assert t.broker_inbox
