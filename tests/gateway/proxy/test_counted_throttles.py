"""Each throttled request counts once, with the time that its client waits: in the metrics and in the ledger alike."""

import pytest

from gateway.features.ledger.fold import ThrottleFolds
from gateway.quotas.engine import QuotaEngine, QuotaSettings
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import START, Transcript, limits

LIMIT = 1_000
"""Bytes per second, with a burst of 10 000 bytes."""


class Client:
    """The connections of one client of a gateway, with the ledger's record of them."""

    def __init__(self, settings=None):
        self.engine = QuotaEngine(settings or limits(produce=LIMIT), START)
        self.folds = ThrottleFolds()
        self.now = START

    def connects(self):
        t = Transcript(engine=self.engine, recorder=self.folds)
        t.passes(self.now - START)
        return t

    def passes(self, seconds, *connections):
        for t in connections:
            t.passes(seconds)
        self.now += seconds

    def overdraws(self, seconds):
        """A first connection uses the burst and as many seconds of the quota more."""
        t = self.connects()
        t.client_sends(m.produce(1, size=round((10.0 + seconds) * LIMIT)))
        return t

    def counted(self, kind="produce"):
        """(throttled requests, throttle time in seconds), after a check that metrics and ledger agree."""
        (row,) = (row for row in self.engine.snapshot(self.now) if row.kind == kind)
        (totals,) = (totals for totals in self.engine.throttle_totals() if totals.kind == kind)
        events = [event for event in self.folds.take("a", self.now, self.now) if event.kind == kind]
        assert sum(totals.buckets) == sum(event.count for event in events) == row.throttled_total
        assert sum(event.throttle_ms for event in events) / 1000 == pytest.approx(row.throttle_seconds_total, abs=0.01)
        return row.throttled_total, pytest.approx(row.throttle_seconds_total)


def test_waiting_request_counts_once():
    """It is looked at several times, and its own charge mutes its connection for 2 s."""
    client = Client()
    client.overdraws(5.0)
    t = client.connects()
    t.client_sends(m.produce(1, size=2_000))
    for _ in range(10):
        client.passes(0.5, t)
    t.broker_got(m.produce(1, size=2_000))
    assert t.paused
    assert client.counted() == (2, 5.0 + 5.0 + 2.0)


@pytest.mark.parametrize("by", [None, 700])
@pytest.mark.parametrize("acks", [0, -1])
def test_each_of_several_waiting_requests_counts_once(acks, by):
    client = Client()
    client.overdraws(3.0)
    waiting = [client.connects() for _ in range(3)]
    for t in waiting:
        t.client_sends(m.produce(1, size=2_000, acks=acks), by=by)
    for _ in range(40):
        client.passes(0.5, *waiting)
    assert client.counted() == (4, 3.0 + (3.0 + 5.0 + 7.0) + 3 * 2.0)


def test_next_request_of_the_connection_counts_again():
    client = Client()
    client.overdraws(3.0)
    t = client.connects()
    t.client_sends(m.produce(1, size=1_000), m.produce(2, size=1_000))
    client.passes(3.0, t)
    t.broker_answers(m.produced(1))
    client.passes(1.0, t)
    t.broker_got(m.produce(1, size=1_000), m.produce(2, size=1_000))
    t.broker_answers(m.produced(2))
    client.passes(5.0, t)
    assert client.counted() == (3, 3.0 + 3.0 + 1.0 + 1.0)


def test_unenforced_wait_counts_once():
    client = Client(limits(produce=LIMIT, enforce=False))
    t = client.connects()
    t.client_sends(m.produce(1, size=14_000))
    (bucket,) = client.engine.buckets()
    bucket.record(3_000, START)  # without a throttle time
    client.connects().client_sends(m.produce(1, size=2_000))
    assert client.counted() == (2, 4.0 + 3.0 + 2.0)
    assert t.row().unenforced_total == 2


def test_request_that_passes_early_counts_the_time_it_waited():
    """A waiting request in front of it leaves."""
    client = Client()
    client.overdraws(3.0)
    first, second = client.connects(), client.connects()
    for t in (first, second):
        t.client_sends(m.produce(1, size=8_000))
    client.passes(1.0, first, second)
    first.core.close(client.now)
    for _ in range(4):
        client.passes(0.5, second)
    second.broker_got(m.produce(1, size=8_000))
    assert client.counted() == (3, 3.0 + 1.0 + 3.0 + 8.0)


def test_client_that_leaves_waits_no_longer():
    client = Client()
    t = client.overdraws(20.0)
    client.passes(2.0, t)
    t.core.close(client.now)
    assert client.counted() == (1, 2.0)


def test_client_that_leaves_after_its_mute_has_waited():
    client = Client()
    t = client.overdraws(2.0)
    t.broker_answers(m.produced(1))
    client.passes(5.0, t)
    t.core.close(client.now)
    assert client.counted() == (1, 2.0)


def test_client_that_leaves_the_queue_counts_its_wait():
    client = Client()
    client.overdraws(20.0)
    t = client.connects()
    t.client_sends(m.produce(1, size=2_000))
    client.passes(2.0, t)
    t.core.close(client.now)
    assert client.counted() == (2, 20.0 + 2.0)


def test_raised_quota_ends_the_counted_time():
    client = Client()
    t = client.overdraws(20.0)
    client.passes(2.0, t)
    t.configure(QuotaSettings())
    assert t.row().throttle_seconds_total == pytest.approx(2.0)


def test_clients_that_reconnect_do_not_count_the_whole_debt():
    """Each of ten connections leaves at once, with 20 s and more of its throttle time left."""
    client = Client(QuotaSettings((EntityQuota(ClientQuotaEntity(None, "etl"), {"request_rate": 1.0}),)))
    first = client.connects()
    first.client_sends(*map(m.metadata, range(11)))
    first.core.close(client.now)
    for number in range(10):
        t = client.connects()
        t.client_sends(m.heartbeat(number))
        client.passes(0.1, t)
        t.core.close(client.now)
    throttled, seconds = client.counted("request_rate")
    assert throttled == 11
    assert seconds.expected <= 11 * 0.1 + 1e-6
