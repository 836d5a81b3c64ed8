"""Folded rejections: the first is logged at once, all further ones in one line; the ledger gets events."""

import logging

import pytest

from gateway.features.topic_quotas.produce_inspector import Rejection
from gateway.features.topic_quotas.rejections import FOLD_SECONDS, MAX_FOLDS, RejectionFolder
from gateway.observer import Outlet
from gateway.proxy.identity import Client
from gateway.proxy.wire import Origin
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.settings import QuotaSettings
from gateway.steps import at_once

NOW, WALL = 1_000.0, 1_700_000_000.0


class Folded:
    def __init__(self):
        self.events = []
        self.client = Client(QuotaEngine(QuotaSettings(), NOW))
        self.client.use("etl", NOW)
        self.origin = Origin("10.0.0.1", 1)
        self.folder = RejectionFolder(Outlet("weir-1", [self], lambda: WALL))

    def notify(self, event):
        self.events.append(event)

    def reject(self, topic="hot", reason="quota", size=100, now=NOW, **rest):
        rates = (5_000.0, 400.0, 5_000.0, 1_000.0)
        self.folder.note(Rejection(topic, reason, size, self.client, self.origin, *rates, **rest), now)


def messages(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "weir.topics"]


def test_flood_is_logged_in_two_lines(caplog):
    folded = Folded()
    for _ in range(500):
        folded.reject()
    assert messages(caplog) == ["topic hot: 1 request of 100 bytes not appended: quota (5000 of 400 bytes/s)"]
    at_once(folded.folder.flush(NOW + FOLD_SECONDS - 0.1))
    assert len(messages(caplog)) == 1
    at_once(folded.folder.flush(NOW + FOLD_SECONDS))
    assert messages(caplog)[1:] == ["topic hot: 499 requests of 49900 bytes not appended: quota (5000 of 400 bytes/s)"]
    at_once(folded.folder.flush(NOW + 2 * FOLD_SECONDS))
    assert len(messages(caplog)) == 2


def test_single_rejection_is_logged_in_one_line(caplog):
    folded = Folded()
    folded.reject()
    at_once(folded.folder.flush(NOW + FOLD_SECONDS))
    assert len(messages(caplog)) == 1


def test_reasons_and_topics_have_separate_lines(caplog):
    folded = Folded()
    folded.reject()
    folded.reject("cold", "MESSAGE_TOO_LARGE")
    folded.reject("hot", "MESSAGE_TOO_LARGE")
    folded.reject("hot", enforced=False)
    assert [line.partition(":")[0] for line in messages(caplog)] == ["topic hot", "topic cold", "topic hot", "topic hot"]
    assert messages(caplog)[1] == "topic cold: 1 request of 100 bytes not appended: MESSAGE_TOO_LARGE (by the broker)"
    assert "would not have been appended" in messages(caplog)[3]


def test_event_holds_folded_rejections():
    folded = Folded()
    for number in range(3):
        folded.origin = Origin(f"10.0.0.{number}", number)
        folded.reject()
    at_once(folded.folder.flush(NOW + FOLD_SECONDS))
    (event,) = folded.events
    assert (event.address, event.broker) == ("10.0.0.2", 2)  # of the last
    assert (event.topic, event.reason, event.user, event.client_id) == ("hot", "quota", "ANONYMOUS", "etl")
    assert (event.count, event.amount, event.enforced, event.gateway) == (3, 300.0, True, "weir-1")
    assert (event.rate, event.limit, event.total_rate, event.total_limit) == (5_000, 400, 5_000, 1_000)
    assert event.time_ms == event.last_ms == int(WALL * 1000)


@pytest.mark.parametrize("many", [MAX_FOLDS + 50])
def test_kinds_of_rejections_are_bounded(many, caplog):
    caplog.set_level(logging.ERROR)
    folded = Folded()
    for number in range(many):
        folded.reject(f"topic-{number}")
    at_once(folded.folder.flush(NOW + FOLD_SECONDS))
    assert len(folded.events) == MAX_FOLDS + 1
    (others,) = (event for event in folded.events if event.topic == "<other>")
    assert (others.count, others.user, others.client_id) == (50, "<other>", "<other>")


def test_each_report_is_a_step():
    """An outage of a broker may end with a thousand reports in one second."""
    folded = Folded()
    for number in range(100):
        folded.reject(f"topic-{number}")
    assert sum(1 for _ in folded.folder.flush(NOW + FOLD_SECONDS)) == 100


def test_last_flush_overtakes_an_earlier_one():
    """The gateway ends while a flush is under way."""
    folded = Folded()
    for number in range(3):
        folded.reject(f"topic-{number}")
    earlier = folded.folder.flush(NOW + FOLD_SECONDS)
    next(earlier)
    at_once(folded.folder.flush(float("inf")))
    at_once(earlier)
    assert [event.topic for event in folded.events] == ["topic-0", "topic-1", "topic-2"]
