"""The feature of topic quotas: topic configs override the thresholds of the config file."""

import json
from collections import Counter
from dataclasses import asdict

import pytest

from gateway import clock
from gateway.admin.json_text import json_parts
from gateway.alter_queue import AlterQueue
from gateway.background import BackgroundTasks
from gateway.cluster.metadata import ClusterMetadata
from gateway.config.section import WindowConfig
from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits, ConnectionQuotas
from gateway.features.sharing.peer_counts import PeerCounts
from gateway.features.topic_quotas.config import TopicsConfig, TopicsSection
from gateway.features.topic_quotas.feature import TopicQuotasFeature
from gateway.features.topic_quotas.producer_turns import TopicProducer
from gateway.features.topic_quotas.thresholds import TopicLimits
from gateway.features.topic_quotas.topic_meters import RATES, TopicUse
from gateway.observer import Outlet
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity
from gateway.quotas.meter import Window
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.settings import QuotaSettings
from gateway.steps import at_once

TOTAL, KEY = "total.bytes.in.per.sec.threshold", "bytes.in.per.sec.threshold"


NONE = TopicsSection(None, WindowConfig(), enforce=True)


def section(total=100, **explicit):
    return NONE._replace(topics=TopicsConfig.model_validate({TOTAL: total, KEY: explicit}))


def make(section=NONE):
    return TopicQuotasFeature(section, ClusterMetadata(list), Outlet(), AlterQueue(), OwnTopics())


@pytest.fixture
async def at_work():
    topics = make()
    async with BackgroundTasks(Counter()) as tasks:
        topics.start(tasks)
        yield topics
        await topics.stop()


async def test_topic_configs_override_file(at_work):
    assert at_work.thresholds.of_file is None
    at_work.override({ClientQuotaEntity(topic="payments"): {KEY: 20.0}})  # known before the quotas are active
    at_work.apply(section(payments=10, orders=30))
    assert at_work.thresholds.of_file == TopicLimits(100.0, {"payments": 10.0, "orders": 30.0})
    assert at_work.quotas.settings.explicit == {"payments": 20.0, "orders": 30.0}
    at_work.override({})
    assert at_work.quotas.settings.explicit == {"payments": 10.0, "orders": 30.0}
    assert at_work.quotas.whole.default_threshold == 60.0


async def test_reload_changes_the_scope(at_work):
    at_work.apply(section(payments=10))
    assert at_work.quotas.by_broker is False
    at_work.apply(section(payments=10)._replace(by_broker=True))
    assert at_work.quotas.by_broker is True
    assert at_work.quotas.of(1) is not at_work.quotas.of(2)
    assert at_work.quotas.of(1).settings.explicit == {"payments": 10.0}
    at_work.apply(section(payments=11)._replace(by_broker=True))
    assert at_work.quotas.of(1).settings.explicit == {"payments": 11.0}


async def test_topic_configs_stay_over_reloaded_file(at_work):
    at_work.apply(section(payments=10))
    at_work.override({ClientQuotaEntity(topic="payments"): {KEY: 20.0}})
    at_work.apply(section(payments=11))
    assert at_work.quotas.settings.explicit == {"payments": 20.0}
    at_work.apply(NONE)
    assert at_work.thresholds.of_file is None


async def test_gateways_share_the_numbers_of_producers(at_work):
    """Beside the connections of another feature, in the messages that an older Weir reads."""
    at_work.apply(section(payments=10))
    turns = at_work._inspection.turns
    use = TopicUse("payments", RATES["window"](Window(), 0.0), labelled=True)
    now = clock.monotonic()
    for owner in "ab":
        turns.refuses("payments", use, TopicProducer(owner), 1, 10.0, now, over=True)
    counts = PeerCounts(connection_quotas(), at_work)
    assert counts.chosen(2, 1_000) == ({("producers", "payments"): 2}, 1, 0)
    counts.receive("peer", {("producers", "payments"): 3})
    assert turns.peers["producers", "payments"] == 3
    counts.forget("peer")
    assert not turns.peers


def connection_quotas():
    limits = ConnectionLimits(100_000, {}, AcceptLimits(), {})
    return ConnectionQuotas(QuotaEngine(QuotaSettings(), 0.0, shared=True), limits, 0.0)


def test_overruled_thresholds_are_named_after_reload():
    topics = make()
    topics.override({ClientQuotaEntity(topic="payments"): {KEY: 20.0}})
    (note,) = topics._notes(section(payments=10), section(payments=11, orders=1))
    assert f"quotas.topics.{KEY}.payments is 11, but the topic's config 20 stays in effect" in note
    assert f"--delete-config {KEY}" in note
    assert topics._notes(section(payments=11), section(payments=11, orders=2)) == []
    (note,) = topics._notes(section(), section(total=15))
    assert f"quotas.topics.{TOTAL} is 15, but the explicit thresholds of file and topic configs add up to 20" in note
    assert topics._notes(section(), NONE) == []


async def test_page_has_the_values_of_the_report(at_work):
    at_work.apply(section(payments=10))
    page = at_work.as_json(at_work.report())
    assert json.loads(b"".join(at_once(json_parts(page)))) == json.loads(json.dumps(asdict(at_work.report())))


def test_no_report_without_quotas():
    assert make().report() is None
