"""Topic quotas of the whole cluster, or of each broker by itself."""

import pytest

from gateway.features.topic_quotas import scoped_quotas
from gateway.features.topic_quotas.rules import ALL_TOPICS, TOPIC, TopicSettings
from gateway.features.topic_quotas.scoped_quotas import MAX_BROKERS, ScopedTopicQuotas
from gateway.quotas.entity import BOOTSTRAP, Tags
from gateway.quotas.meter import Window
from gateway.quotas.own_topics import OwnTopics
from gateway.steps import at_once

START = 5_000.0
SETTINGS = TopicSettings(1_000.0, {"hot": 100.0}, "window", Window(11, 1.0))
TOPICS = {"hot": bytes(16), "cold": bytes(16)}


def quotas(*, by_broker=True):
    made = ScopedTopicQuotas(SETTINGS, START, own=OwnTopics(), by_broker=by_broker)
    made.update_topics(TOPICS)
    return made


def append(subject, broker, size, topic=b"hot"):
    return subject.of(broker).appended(topic, size, START, by_id=False)


def test_each_broker_rejects_for_its_own_bytes():
    subject = quotas()
    busy, idle = append(subject, 1, 50_000), append(subject, 2, 10)
    assert subject.of(1).rejects(busy, START)
    assert not subject.of(2).rejects(idle, START)


def test_cluster_has_one_set_of_quotas():
    subject = quotas(by_broker=False)
    assert subject.of(BOOTSTRAP) is subject.whole
    assert at_once(subject.report(START)).brokers == []
    assert {row.broker for row in at_once(subject.report(START)).rows} == {""}


def test_new_broker_knows_the_listed_topics():
    subject = quotas()
    assert subject.of(7).default_threshold == 900.0
    subject.update_topics({**TOPICS, "new": bytes(16)})
    assert subject.of(7).default_threshold == 450.0


def test_report_names_brokers_and_the_busiest_total():
    subject = quotas()
    append(subject, 1, 10)
    append(subject, 2, 50_000)
    report = at_once(subject.report(START))
    assert [(row.topic, row.broker, row.appended_bytes) for row in report.rows] == [("hot", "1", 10), ("hot", "2", 50_000)]
    assert [total.broker for total in report.brokers] == ["1", "2"]
    assert report.total == report.brokers[1]


def test_bootstrap_has_rows_only_with_bytes():
    subject = quotas()
    append(subject, 1, 10)
    assert [total.broker for total in at_once(subject.report(START)).brokers] == ["1"]
    append(subject, BOOTSTRAP, 10)
    assert [total.broker for total in at_once(subject.report(START)).brokers] == ["1", "bootstrap"]


def test_bytes_of_a_peer_count_at_the_same_broker():
    here, peer = quotas(), quotas()
    append(peer, 3, 50_000)
    shared = dict(peer.changed())
    assert {key for key, account in shared.items() if account.total()} == {("broker_topic", "3/hot"), ("broker_topics", "3/")}
    for (kind, name), account in shared.items():
        here.peer_account(kind, name, START).charge_others(account.total(), START, no_debt=False)
    assert here.of(3).rejects(here.of(3).find(b"hot", by_id=False), START)
    assert here.of(4).find(b"hot", by_id=False) is None


@pytest.mark.parametrize(
    ("by_broker", "kind", "name"),
    [
        (True, TOPIC, "hot"),
        (True, ALL_TOPICS, ""),
        (False, "broker_topic", "1/hot"),
        (False, "broker_topics", "1/"),
        (True, "broker_topic", "hot"),
        (True, "broker_topic", "x/hot"),
        (True, "broker_topic", "/hot"),
        (True, "broker_topic", "--1/hot"),
        (True, "broker_topic", "\u00b2/hot"),
        (True, "broker_topic", "1" * 5_000 + "/hot"),
        (True, "broker_topic", Tags("alice", None)),
    ],
)
def test_account_of_another_scope_is_not_shared(by_broker, kind, name):
    assert quotas(by_broker=by_broker).peer_account(kind, name, START) is None


def test_peers_cannot_name_unbounded_brokers():
    subject = quotas()
    for broker in range(MAX_BROKERS):
        subject.peer_account("broker_topic", f"{broker}/hot", START)
    assert subject.peer_account("broker_topic", f"{MAX_BROKERS}/hot", START) is None
    assert subject.peer_account("broker_topic", "7/hot", START) is not None
    assert subject.of(MAX_BROKERS) is subject.whole


@pytest.mark.parametrize("by_broker", [True, False])
def test_recent_use_returns_in_the_same_scope_only(by_broker):
    before = quotas(by_broker=by_broker)
    append(before, 1 if by_broker else BOOTSTRAP, 50_000)
    saved = list(before.recent_uses(before.accounts(), START))
    for scope in (True, False):
        after = quotas(by_broker=scope)
        after.restore_uses(saved, START)
        rates = [total.rate for total in at_once(after.report(START)).brokers or [at_once(after.report(START)).total]]
        assert (max(rates) > 0) is (scope is by_broker)


@pytest.mark.parametrize("by_broker", [False, True])
def test_accounts_of_the_scope_before_are_not_saved(by_broker):
    """A reload may come between two steps of a save."""
    before, after = (
        ScopedTopicQuotas(TopicSettings(1_000), START, own=OwnTopics(), by_broker=scope) for scope in (by_broker, not by_broker)
    )
    append(before, 1, 10)
    assert list(before.recent_uses(before.accounts(), START)) != []
    assert list(after.recent_uses(before.accounts(), START)) == []


def test_changed_settings_reach_every_broker():
    subject = quotas()
    append(subject, 1, 1)
    subject.apply(TopicSettings(77.0), START)
    assert [subject.of(broker).settings.total for broker in (1, 2)] == [77.0, 77.0]


@pytest.mark.parametrize(("topics", "listings"), [(TOPICS, 0), ({"hot": bytes(16)}, 1)])
def test_only_a_changed_list_of_topics_is_read(topics, listings, monkeypatch):
    subject, made = quotas(), []
    listing = scoped_quotas.TopicListing
    monkeypatch.setattr(scoped_quotas, "TopicListing", lambda *given: made.append(given) or listing(*given))
    subject.update_topics(dict(topics))
    assert len(made) == listings


def test_new_own_topic_leaves_an_unchanged_list():
    own = OwnTopics()
    subject = ScopedTopicQuotas(SETTINGS, START, own=own)
    subject.update_topics(TOPICS)
    own.rename(["cold"])
    subject.update_topics(TOPICS)
    assert subject.whole.totals(START).defaulted == 0


def test_unused_topic_is_forgotten_with_an_unchanged_list():
    subject = quotas()
    append(subject, 1, 10, b"young")
    for _ in range(2):
        subject.update_topics(TOPICS)
    assert subject.of(1).find(b"young", by_id=False) is None
