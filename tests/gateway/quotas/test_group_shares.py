"""Groups that share a capacity, with clients that send as fast as they may."""

from dataclasses import replace
from math import inf

import pytest

from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, Tags
from gateway.quotas.group_buckets import INTERVAL_SECONDS
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.usage_rows import usage_row
from tests.gateway.quotas.greedy_clients import START, Sender, Traffic
from tests.gateway.quotas.grouped import grouped

MB8 = 8_000_000.0
KEY = "producer_byte_rate"


def group(name, parent="all", *, weight=None, guarantee=None, ceiling=None, clients=True):
    return Group(
        name,
        (GroupRule(user=name),) if clients else (),
        {} if ceiling is None else {KEY: ceiling},
        parent=parent,
        guarantees={} if guarantee is None else {KEY: guarantee},
        weights={} if weight is None else {KEY: weight},
    )


ALL = group("all", None, ceiling=MB8, clients=False)


def settings(*groups, **rest):
    return grouped(groups, **rest)


def engine(*groups, **rest):
    return QuotaEngine(settings(ALL, *groups), START, **rest)


def divide(subject, now):
    subject.group_buckets.divide(subject.group_buckets.measure(now), INTERVAL_SECONDS, now)


def traffic(*groups):
    subject = engine(*groups)
    return Traffic([subject], lambda now: divide(subject, now))


def level(subject, name, now=START):
    return next(row for row in subject.group_buckets.rows(now) if row.group == name)


@pytest.mark.parametrize(
    ("groups", "senders", "expected"),
    [
        ([group("a", weight=3), group("b")], [Sender("a"), Sender("b")], {"a": 0.75, "b": 0.25}),
        (
            [group("a"), group("b"), group("c")],
            [Sender("a"), Sender("b", rate=MB8 * 50 / 120), Sender("c", rate=MB8 * 10 / 120)],
            {"a": 60 / 120, "b": 50 / 120, "c": 10 / 120},
        ),
        ([group("a"), group("b", guarantee=0.8 * MB8)], [Sender("a"), Sender("b")], {"a": 0.1, "b": 0.9}),
        ([group("a", ceiling=0.3 * MB8), group("b")], [Sender("a"), Sender("b")], {"a": 0.3, "b": 0.7}),
        ([group("a", weight=3), group("b"), group("c")], [Sender("a"), Sender("c")], {"a": 0.75, "c": 0.25}),
        (
            [group("x", weight=2, clients=False), group("a", "x"), group("a2", "x"), group("b")],
            [Sender("a"), Sender("b")],
            {"a": 2 / 3, "b": 1 / 3},
        ),
    ],
    ids=["weights", "wants", "guarantee", "ceiling", "idle", "two_levels"],
)
def test_greedy_clients_get_their_shares(groups, senders, expected):
    subject = traffic(*groups)
    subject.run(senders, 12)
    assert subject.shares(MB8, 2, 12) == pytest.approx(expected, abs=0.01)
    assert min(subject.whole(MB8, 2, 12)) > 0.97


LENDERS = (group("a"), group("x", clients=False), group("x1", "x", guarantee=0.6 * MB8), group("x2", "x"))
"""The group x lends as long as x1 is idle: its allocation is half of the capacity, its entitlement is 0.8."""


def test_idle_guarantee_is_divided_above_its_siblings():
    subject = traffic(*LENDERS)
    subject.run([Sender("a"), Sender("x2")], 10)
    assert subject.shares(MB8, 4, 10) == pytest.approx({"a": 0.5, "x2": 0.5}, abs=0.01)
    assert min(subject.whole(MB8, 2, 10)) > 0.97


def test_idle_guarantee_is_divided_on_three_levels():
    groups = [
        group("a"),
        group("x", weight=3, clients=False),
        group("y", "x", ceiling=0.6 * MB8, clients=False),
        group("y1", "y", weight=2),
        group("y2", "y", guarantee=0.1 * MB8),
        group("x1", "x", weight=2, guarantee=0.1 * MB8),
        group("c", weight=3, ceiling=0.6 * MB8),
    ]
    subject = traffic(*groups)
    subject.run([Sender("a"), Sender("c"), Sender("x1"), Sender("y1")], 14)
    expected = {"a": 0.129, "c": 0.386, "x1": 0.357, "y1": 0.129}
    assert subject.shares(MB8, 8, 14) == pytest.approx(expected, abs=0.02), "all have used up their bursts by then"


def test_lent_guarantee_returns_at_once_with_its_group():
    subject = traffic(*LENDERS)
    subject.run([Sender("a"), Sender("x2"), Sender("x1", lambda seconds: seconds >= 6)], 16)
    assert subject.shares(MB8, 6, 8)["x1"] > 0.65
    assert subject.shares(MB8, 8, 16) == pytest.approx({"a": 0.2, "x1": 0.7, "x2": 0.1}, abs=0.01)
    seconds = subject.whole(MB8, 2, 16)
    assert min(seconds) > 0.85
    assert max(seconds) < 1.2


def test_sibling_of_an_idle_guarantee_uses_a_capacity_alone():
    subject = traffic(*LENDERS)
    subject.run([Sender("a", lambda seconds: seconds < 6), Sender("x2")], 12)
    seconds = subject.whole(MB8, 2, 12)
    assert min(seconds) > 0.97
    assert max(seconds) < 1.1


def test_idle_group_gets_its_guarantee_at_once_when_it_returns():
    subject = traffic(group("a"), group("b", guarantee=MB8 / 2))
    subject.run([Sender("a"), Sender("b", lambda seconds: not 3 <= seconds < 13)], 20)
    assert subject.shares(MB8, 5, 13) == pytest.approx({"a": 1.0}, abs=0.01)
    assert subject.shares(MB8, 13, 15)["b"] > 0.7
    assert subject.shares(MB8, 15, 20) == pytest.approx({"a": 0.25, "b": 0.75}, abs=0.01)
    seconds = subject.whole(MB8, 2, 20)
    assert min(seconds) > 0.85
    assert max(seconds) < 1.2


def test_changes_every_six_seconds_waste_and_exceed_little():
    subject = traffic(group("a"), group("b", guarantee=MB8 / 2))
    subject.run([Sender("a"), Sender("b", lambda seconds: int(seconds / 6) % 2 == 0)], 48)
    seconds = subject.whole(MB8, 6, 48)
    assert all(0.97 < sum(seconds[begin : begin + 5]) / 5 < 1.03 for begin in range(len(seconds) - 5))
    assert max(seconds) < 1.2


def test_member_waits_for_its_own_quota_as_well():
    own = replace(group("a").quota, entity=ClientQuotaEntity("a"), limits={KEY: MB8 / 10})
    subject = engine(group("a"), group("b"))
    subject.apply(replace(subject.settings, quotas=(*subject.settings.quotas, own)), START)
    run = Traffic([subject], lambda now: divide(subject, now))
    run.run([Sender("a"), Sender("b")], 20)
    assert run.shares(MB8, 13, 20) == pytest.approx({"a": 0.1, "b": 0.9}, abs=0.02)


@pytest.mark.parametrize("kind", ["fetch", "request_rate", "controller_mutation"])
def test_every_kind_is_divided(kind):
    key = {"fetch": "consumer_byte_rate", "controller_mutation": "controller_mutation_rate"}.get(kind, kind)
    groups = (replace(ALL, limits={key: MB8}), replace(group("a"), weights={key: 3.0}), group("b"))
    subject = QuotaEngine(settings(*groups), START)
    run = Traffic([subject], lambda now: divide(subject, now), kind=kind)
    run.run([Sender("a"), Sender("b")], 6)
    assert run.shares(MB8, 2, 6) == pytest.approx({"a": 0.75, "b": 0.25}, abs=0.02)


def test_path_has_the_clients_bucket_and_its_groups():
    subject = engine(group("x", clients=False), group("a", "x"))
    path = subject.acquire_path("produce", "a", "", START)
    assert [bucket.resolution.tags for bucket in path] == [Tags(None, ""), Tags(None, None, group="a")]
    assert path[1].resolution.limit == MB8
    path[1].charge(1_000, START)
    divide(subject, START + 0.2)
    used = {bucket.resolution.tags.group: bucket.amount_total for bucket in subject.buckets()}
    assert used == {None: 0, "a": 1_000, "x": 1_000, "all": 1_000}


def test_used_ratio_is_of_the_present_share():
    subject = engine(group("a", weight=3), group("b"))
    (_, bucket) = subject.acquire_path("produce", "b", "", START)
    used = 0.95 * MB8 / 4
    for second in range(1, 13):
        for tenth in range(10):
            bucket.charge(int(used / 10), START + second - 1 + tenth / 10)
        divide(subject, START + second)
        subject.tick(START + second)
    assert usage_row(bucket, START + 12).used_ratio == pytest.approx(0.95, abs=0.02)


def test_group_without_numbers_below_a_ceiling_has_weight_one():
    subject = engine(group("a", weight=3), group("b"))
    assert (level(subject, "a").entitlement, level(subject, "b").entitlement) == (0.75 * MB8, 0.25 * MB8)


def test_group_without_a_ceiling_above_is_not_limited():
    subject = QuotaEngine(settings(group("all", None, clients=False), group("a")), START)
    assert [bucket.resolution.tags.group for bucket in subject.acquire_path("produce", "a", "", START)] == [None]
    assert not subject.group_buckets.active


def test_burst_of_a_group_with_clients_is_a_second():
    subject = engine(group("a", weight=3), group("b"))
    bucket = subject.acquire_path("produce", "a", "", START)[1]
    assert bucket.capacity() == 0.75 * MB8
    parents = [each for each in subject.buckets() if each.resolution.tags.group == "all"]
    assert [parent.capacity() for parent in parents] == [INTERVAL_SECONDS * MB8]


def test_burst_is_at_least_a_full_request():
    subject = QuotaEngine(settings(replace(ALL, limits={KEY: 1_000.0}), group("a"), group("b")), START)
    subject.acquire_path("produce", "a", "", START)
    assert {bucket.capacity() for bucket in subject.buckets() if bucket.meter} == {1_048_576.0}


def test_waiting_client_makes_the_demand_unbounded():
    subject = engine(group("a"), group("b"))
    subject.group_buckets.measure(START)
    a, b = (subject.acquire_path("produce", name, "", START)[1] for name in "ab")
    a.charge(int(MB8), START)
    b.charge(1_000, START)
    assert subject.group_buckets.measure(START + 0.2) == {("produce", "a"): inf, ("produce", "b"): pytest.approx(5_000)}
    assert subject.group_buckets.measure(START + 0.4) == {("produce", "a"): inf}
    assert subject.group_buckets.measure(START + 2.0) == {("produce", "a"): inf}
    assert subject.group_buckets.measure(START + 3.0) == {}


def test_reloaded_weights_count_at_the_next_division():
    subject = traffic(group("a", weight=3), group("b"))
    subject.run([Sender("a"), Sender("b")], 6)
    subject.engines[0].apply(settings(ALL, group("a"), group("b", weight=4)), subject.now)
    subject.run([Sender("a"), Sender("b")], 8)
    assert subject.shares(MB8, 8, 14) == pytest.approx({"a": 0.2, "b": 0.8}, abs=0.01)


def test_reloaded_parent_moves_a_group():
    subject = traffic(group("x", weight=3, clients=False), group("a", "x"), group("b"))
    subject.run([Sender("a"), Sender("b")], 6)
    assert subject.shares(MB8, 2, 6)["a"] == pytest.approx(0.75, abs=0.01)
    moved = settings(ALL, group("x", weight=3, clients=False), group("y", "x"), group("a"), group("b"))
    subject.engines[0].apply(moved, subject.now)
    subject.run([Sender("a"), Sender("b")], 8)
    assert subject.shares(MB8, 8, 14) == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.01)
    assert level(subject.engines[0], "x", subject.now).allocation == 0.0


def test_group_joins_and_leaves_a_tree():
    alone = group("a", None, ceiling=MB8 / 10)
    subject = traffic(alone, group("b"))
    senders = [Sender("a"), Sender("b")]
    subject.run(senders, 14)
    assert subject.shares(MB8, 11, 14) == pytest.approx({"a": 0.1, "b": 1.0}, abs=0.01)
    subject.engines[0].apply(settings(ALL, group("a"), group("b")), subject.now)
    subject.run(senders, 6)
    assert subject.shares(MB8, 16, 20) == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.01)
    subject.engines[0].apply(settings(ALL, alone, group("b")), subject.now)
    subject.run(senders, 14)
    assert subject.shares(MB8, 31, 34) == pytest.approx({"a": 0.1, "b": 1.0}, abs=0.02)


def test_ceiling_of_the_quota_api_is_divided():
    subject = traffic(group("a"), group("b"))
    dynamic = {ClientQuotaEntity(group="all"): {KEY: MB8 / 2}, ClientQuotaEntity(group="a"): {KEY: MB8 / 8}}
    subject.engines[0].apply(replace(subject.engines[0].settings, dynamic=dynamic), START)
    subject.run([Sender("a"), Sender("b")], 8)
    assert subject.shares(MB8, 2, 8) == pytest.approx({"a": 0.125, "b": 0.375}, abs=0.01)


def test_unenforced_groups_keep_no_debt():
    subject = engine(group("a"), group("b"))
    subject.apply(replace(subject.settings, enforce=False), START)
    run = Traffic([subject], lambda now: divide(subject, now))
    run.run([Sender("a"), Sender("b", rate=MB8 / 4)], 3)
    assert run.shares(MB8, 0, 3)["a"] > 2
    assert {bucket.throttle_left(run.now) for bucket in subject.buckets()} == {0.0}
    subject.apply(replace(subject.settings, enforce=True), run.now)
    run.run([Sender("a"), Sender("b", rate=MB8 / 4)], 6)
    assert run.shares(MB8, 5, 9) == pytest.approx({"a": 0.75, "b": 0.25}, abs=0.02)


def test_buckets_of_a_tree_are_never_dropped():
    subject = engine(group("a"), group("b"))
    path = subject.acquire_path("produce", "a", "", START)
    for bucket in path:
        subject.release(bucket, START)
    subject.tick(START + 10_000)
    assert {bucket.resolution.tags.group for bucket in subject.buckets()} == {"a", "all"}


GUARANTEED = (group("a", guarantee=MB8 * 0.6), group("b", guarantee=MB8 * 0.4), group("rest"))
"""The guarantees leave nothing to `rest`."""


def test_group_beside_full_guarantees_borrows_what_is_idle():
    subject = traffic(*GUARANTEED)
    subject.run([Sender("rest")], 6)
    assert subject.shares(MB8, 2, 6) == pytest.approx({"rest": 1.0}, abs=0.02)


def test_group_beside_full_guarantees_leaves_them_whole():
    subject = traffic(*GUARANTEED)
    subject.run([Sender("a"), Sender("b"), Sender("rest")], 22)
    found = subject.shares(MB8, 2, 22)
    assert (found["a"], found["b"]) == pytest.approx((0.6, 0.4), abs=0.01)
    assert 0.0 < found["rest"] <= 0.01


def test_ceiling_below_the_guarantees_leaves_each_group_a_part():
    subject = traffic(*GUARANTEED)
    senders = [Sender("a"), Sender("b"), Sender("rest")]
    subject.run(senders, 2)
    dynamic = {ClientQuotaEntity(group="all"): {KEY: MB8 / 2}}
    subject.engines[0].apply(replace(subject.engines[0].settings, dynamic=dynamic), subject.now)
    subject.run(senders, 10)
    found = subject.shares(MB8, 6, 12)
    assert (found["a"], found["b"]) == pytest.approx((0.278, 0.222), abs=0.01), "no guarantee exceeds the ceiling"


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_group_that_enters_a_tree_keeps_its_debt(algorithm):
    alone = group("a", None, ceiling=MB8)
    subject = QuotaEngine(settings(ALL, alone, algorithm=algorithm), START)
    bucket = subject.acquire_path("produce", "a", "", START)[1]
    bucket.charge(int(MB8) * 15, START)
    subject.apply(settings(ALL, group("a"), algorithm=algorithm), START)
    debt = -bucket.meter.tokens(START) / MB8
    assert debt == pytest.approx(5.0 if algorithm == "token_bucket" else 0.0, abs=0.01), "a new algorithm keeps no debt"


@pytest.mark.parametrize(("algorithm", "shared"), [("token_bucket", False), ("token_bucket", True), ("window", False)])
def test_group_that_leaves_its_tree_keeps_its_use(algorithm, shared):
    subject = QuotaEngine(settings(ALL, group("a"), algorithm=algorithm), START, shared=shared)
    bucket = subject.acquire_path("produce", "a", "", START)[1]
    bucket.charge(int(MB8) * 6, START)
    subject.apply(settings(ALL, group("a", None, ceiling=MB8), algorithm=algorithm), START)
    expected = -5.0 if algorithm == "token_bucket" else 4.0
    assert bucket.meter.balance(START) / MB8 == pytest.approx(expected, abs=0.01)
