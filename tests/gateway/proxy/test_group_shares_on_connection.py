"""Connections of groups that share a capacity: 10 requests/s, of which each group has 5 at any time."""

import pytest

from gateway.features.groups.feature import Groups
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.group_buckets import INTERVAL_SECONDS
from gateway.quotas.groups import Group, GroupRule
from gateway.steps import at_once
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.consumers import Consumers, batched, jain
from tests.gateway.proxy.transcript import START, Transcript
from tests.gateway.quotas.grouped import grouped

KEY = "request_rate"
ALL = Group("all", (), {KEY: 10})


def group(name, clients="", **rest):
    return Group(name, (GroupRule(client_id=f"{clients or name}-*"),), parent="all", **rest)


def settings(*groups):
    return grouped(groups)


def started(*groups):
    return QuotaEngine(settings(ALL, *groups), START)


def send(t, count, client_id):
    for number in range(count):
        t.client_sends(m.produce(number, client_id=client_id))


def used(t):
    t.engine.group_buckets.measure(t.now)
    return {bucket.resolution.tags.group: bucket.amount_total for bucket in t.engine.buckets() if bucket.resolution.tags.group}


def test_group_that_borrows_waits_for_the_parent():
    t = Transcript(engine=started(group("a"), group("b")))
    send(t, 2, "a-1")
    assert not t.paused
    send(t, 1, "a-1")
    assert t.paused
    t.broker_answers(m.produced(0), m.produced(1), m.produced(0))
    t.client_got(*(m.produced(number, throttle_time_ms=100) for number in (0, 1, 0)))
    t.passes(0.1)
    assert not t.paused


def test_group_within_its_entitlement_ignores_the_parents_debt():
    engine = started(group("a"), group("b"))
    borrower, returning = Transcript(engine=engine), Transcript(engine=engine)
    send(borrower, 3, "a-1")
    send(returning, 1, "b-1")
    assert (borrower.paused, returning.paused) == (True, False)
    send(returning, 1, "b-1")
    assert returning.paused  # only its first request is within the entitlement


def test_parent_is_charged_for_the_groups_below():
    t = Transcript(engine=started(group("a"), group("b")))
    send(t, 2, "a-1")
    assert used(t) == {"a": 2, "all": 2}


def test_waiting_client_raises_the_share_of_its_group():
    t = Transcript(engine=started(group("a"), group("b")))
    groups = t.engine.group_buckets
    groups.measure(t.now)
    send(t, 3, "a-1")
    groups.divide(groups.measure(t.now + INTERVAL_SECONDS), INTERVAL_SECONDS, t.now + INTERVAL_SECONDS)
    (row,) = (row for row in groups.rows(t.now) if row.group == "a")
    assert (row.allocation, row.entitlement, row.wants_more) == (10, 5, True)


def test_open_connection_moves_to_another_group():
    t = Transcript(engine=started(group("a"), group("b")))
    send(t, 2, "a-1")
    t.configure(settings(ALL, group("a", "x"), group("b", "a")))
    t.passes(1.0)
    send(t, 1, "a-1")
    assert used(t) == {"a": 2, "b": 1, "all": 3}
    assert not t.paused


def test_new_connection_waits_for_the_debt_of_its_group():
    engine = started(group("a"), group("b"))
    send(Transcript(engine=engine), 3, "a-1")
    t = Transcript(engine=engine)
    send(t, 1, "a-2")
    t.broker_got()
    t.passes(0.1)
    t.broker_got(m.produce(0, client_id="a-2"))


def test_consumer_of_a_group_waits_for_its_share():
    engine = QuotaEngine(settings(Group("all", (), {"consumer_byte_rate": 4_000_000}), group("a"), group("b")), START)
    t = Transcript(engine=engine)
    fetch = m.fetch(1, session=(0, -1), max_bytes=50_000_000, client_id="a-1")
    t.client_sends(fetch)
    t.broker_got(m.fetch(1, session=(0, -1), max_bytes=1_048_576, client_id="a-1"))
    t.broker_answers(m.fetched(1, size=3_000_000))
    assert t.paused  # the own bucket is 1 MB in debt at 2 MB/s, and the parent's half a second


def test_larger_share_shortens_a_long_mute():
    engine = QuotaEngine(settings(Group("all", (), {"producer_byte_rate": 1_000_000}), group("a"), group("b")), START)
    t = Transcript(engine=engine)
    feature = Groups(engine, lambda: t.core.reconsider(t.now), shared=False)
    engine.group_buckets.measure(t.now)
    t.client_sends(m.produce(0, size=4_048_576, client_id="a-1"))  # 3 MB of debt at 0.5 MB/s
    t.broker_answers(m.produced(0))
    t.passes(1.0)
    engine.group_buckets.divide(engine.group_buckets.measure(t.now), INTERVAL_SECONDS, t.now)
    at_once(feature.tick(t.now))
    t.passes(2.4)
    assert t.paused
    t.passes(0.2)
    assert not t.paused


def test_consumers_share_by_weight_and_take_turns_in_their_group():
    groups = (
        Group("all", (), {"consumer_byte_rate": 8_000_000}), group("a", weights={"consumer_byte_rate": 3.0}), group("b"),
    )  # fmt: skip
    consumers = Consumers(settings(*groups))
    buckets = consumers.engine.group_buckets

    def divide():
        buckets.divide(buckets.measure(consumers.now), INTERVAL_SECONDS, consumers.now)
        consumers.at(consumers.now + INTERVAL_SECONDS, divide)

    divide()
    names = [f"{name}-{number}" for name in "ab" for number in range(4)]
    logs = {name: consumers.add(batched(100_000), client_id=name) for name in names}
    consumers.run(15)
    used = {name: sum(size for at, size in log.full if at > START + 5) for name, log in logs.items()}
    whole = {name: sum(amount for each, amount in used.items() if each.startswith(name)) / 80_000_000 for name in "ab"}
    assert whole == pytest.approx({"a": 0.75, "b": 0.25}, abs=0.01)
    assert jain([used[f"a-{number}"] for number in range(4)]) > 0.99
