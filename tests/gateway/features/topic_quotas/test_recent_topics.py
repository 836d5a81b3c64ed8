"""The rates of topics over a restart: the same as without a restart."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.features.topic_quotas.one_minute_rate import OneMinuteRate
from gateway.features.topic_quotas.recent_topics import restore_topics, topic_uses
from gateway.features.topic_quotas.rules import ALL_TOPICS, TOPIC, TopicQuotas, TopicSettings
from gateway.quotas.meter import PastUse, Window
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.rate import SampledRate
from gateway.quotas.recent_use import TopicRateUse
from tests.gateway.features.topic_quotas.listing import list_topics

START, AGAIN = 5_000.0, 70.0
WINDOW = Window(5, 1.0)
SETTINGS = {meter: TopicSettings(1_000.0, {"hot": 100.0}, meter, WINDOW) for meter in ("one_minute", "window")}

steps = st.lists(st.tuples(st.integers(0, 9_000), st.integers(0, 900)), max_size=20)
"""(ms since the last one, amount) ..."""


def rates(now):
    return [OneMinuteRate(now), SampledRate(WINDOW)]


@settings(deadline=None)
@given(index=st.integers(0, 1), before=steps, pause=st.integers(0, 80_000), after=steps, shift=st.integers(-4_000, 4_000))
def test_rate_continues_after_restart(index, before, pause, after, shift):
    first, second = rates(START)[index], rates(AGAIN)[index]
    now = START
    for ms, amount in before:
        now += ms / 1000.0
        first.record(amount, now)
    spent = first.dump(now)
    now += pause / 1000.0
    second.restore(
        [PastUse(each.began + pause / 1000.0, each.ended + pause / 1000.0, each.amount) for each in spent], now + shift
    )
    for ms, amount in after:
        now += ms / 1000.0
        first.record(amount, now)
        second.record(amount, now + shift)
        assert second.measure(now + shift) == pytest.approx(first.measure(now))
    assert second.kept(now + shift) == pytest.approx(first.kept(now))


def quotas(meter, now, **bounds):
    return TopicQuotas(SETTINGS[meter], now, own=OwnTopics(), **bounds)


def saved(first, now):
    return list(topic_uses(first, first.accounts(), now))


@pytest.mark.parametrize("meter", ["one_minute", "window"])
def test_rejected_topic_stays_rejected_after_restart(meter):
    first = quotas(meter, START)
    list_topics(first, {"hot": bytes(16), "cold": bytes(16)})
    for second in range(8):
        first.appended(b"hot", 5_000, START + second, by_id=False)
    now = START + 8.0
    assert first.rejects(first.find(b"hot", by_id=False), now)
    uses = saved(first, now)
    assert [use.name for use in uses] == [None, "hot"]

    second = quotas(meter, AGAIN)
    restore_topics(second, uses, AGAIN)
    use = second.find(b"hot", by_id=False)
    assert second.rejects(use, AGAIN)
    assert (use.appended_bytes, second.find(b"cold", by_id=False)) == (0, None)
    assert second.rate(AGAIN) == pytest.approx(first.rate(now))
    # A list with a restored topic keeps the topic's rate; two lists without the topic remove it.
    list_topics(second, {"hot": bytes(16), "cold": bytes(16)})
    assert second.rejects(second.find(b"hot", by_id=False), AGAIN)
    for _ in range(2):
        list_topics(second, {"cold": bytes(16)})
    assert second.find(b"hot", by_id=False) is None

    third = quotas(meter, AGAIN)
    restore_topics(third, [use.aged(600.0) for use in uses], AGAIN)
    assert not third.rejects(third.find(b"hot", by_id=False), AGAIN)


def test_peer_appends_are_restored_separately():
    first = quotas("window", START)
    first.peer_account(TOPIC, "hot", START).charge_others(600, START, no_debt=False)
    first.peer_account(ALL_TOPICS, "", START).charge_others(6_000, START, no_debt=False)
    first.appended(b"hot", 200, START, by_id=False)
    second = quotas("window", AGAIN)
    restore_topics(second, saved(first, START), AGAIN)
    use = second.known(TOPIC, "hot")
    assert (use.rate.measure(AGAIN), use.elsewhere.measure(AGAIN)) == (50.0, 150.0)
    assert second.over(AGAIN)


def test_expired_rates_are_not_saved_and_bounds_hold():
    first = quotas("one_minute", START)
    first.appended(b"hot", 10, START, by_id=False)
    assert saved(first, START + 3_600.0) == []
    for name in (b"a", b"b", b"c"):
        first.appended(name, 5_000, START, by_id=False)
    second = quotas("one_minute", AGAIN, max_topics=2)
    restore_topics(second, saved(first, START), AGAIN)
    assert [second.known(TOPIC, name) is not None for name in "abc"] == [True, True, False]


def test_changed_meter_starts_anew():
    first = quotas("one_minute", START)
    first.appended(b"hot", 5_000, START, by_id=False)
    second = quotas("window", AGAIN)
    restore_topics(second, saved(first, START), AGAIN)
    assert second.known(TOPIC, "hot") is None
    assert second.rate(AGAIN) == 0.0


def test_empty_record_gives_a_new_rate():
    restore_topics(quotas("one_minute", AGAIN), [TopicRateUse(None, "one_minute", WINDOW, ())], AGAIN)
    for rate in rates(START):
        rate.record(100, START)
        rate.restore([], START)
        assert rate.kept(START) == 0.0
