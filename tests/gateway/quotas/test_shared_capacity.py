"""Groups that share a capacity: who pays, who borrows, and the rows of pages."""

from math import inf

import pytest

from gateway.quotas.debts import DebtFilter, clear_debts
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.group_buckets import GroupShareRow
from gateway.quotas.group_tree import KindTree, lineage
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.quota_table import QuotaTable
from tests.gateway.quotas.grouped import grouped

START = 5_000.0
KEY = "producer_byte_rate"


def groups(**weights):
    return (
        Group("all", (), {KEY: 1_000.0}),
        Group("etl", (GroupRule(client_id="etl"),), parent="all", guarantees={KEY: 600.0}),
        Group("team", (), parent="all"),
        Group("web", (GroupRule(client_id="web"),), parent="team", weights=weights),
    )


def engine():
    return QuotaEngine(settings(groups()), START)


def settings(rows):
    return grouped(rows)


def bucket(subject, client_id):
    return subject.acquire_path("produce", "", client_id, START)[1]


def shares(subject):
    return {row.group: row for row in subject.group_buckets.rows(START)}


def row(allocation, parent="all"):
    return GroupShareRow("produce", "etl", parent, 1, 1.0, 0.0, None, 400.0, allocation, False, 0.0)


@pytest.mark.parametrize(
    ("found", "borrowed", "lent"), [(row(700.0), 300.0, 0.0), (row(100.0), 0.0, 300.0), (row(100.0, ""), 0.0, 0.0)]
)
def test_rows_show_borrowed_and_lent_parts(found, borrowed, lent):
    assert (found.borrowed, found.lent) == (borrowed, lent)


def test_rows_show_the_place_of_each_group():
    subject = engine()
    for name in ("etl", "web"):
        bucket(subject, name)
    subject.group_buckets.measure(START)
    subject.group_buckets.divide({("produce", "etl"): inf, ("produce", "web"): 100.0}, 0.2, START)
    found = shares(subject)
    assert {name: (row.parent, row.level, row.ceiling) for name, row in found.items()} == {
        "all": ("", 0, 1_000.0),
        "etl": ("all", 1, None),
        "team": ("all", 1, None),
        "web": ("team", 2, None),
    }
    assert [(row.entitlement, row.allocation, row.wants_more) for row in (found["etl"], found["web"])] == [
        (800.0, 900.0, True),
        (200.0, 100.0, False),
    ]
    assert (found["etl"].guarantee, found["etl"].weight, found["etl"].use) == (600.0, 1.0, 0.0)


def test_reload_keeps_buckets_and_moves_them_below_their_parents():
    subject = engine()
    etl = bucket(subject, "etl")
    etl.charge(500, START)
    subject.apply(settings(groups(producer_byte_rate=2.0)), START)
    assert bucket(subject, "etl") is etl
    etl.charge(300, START)
    assert etl.meter.parent.used == 800
    found = subject.group_buckets.measure(START + 1.0)
    assert set(found) == {("produce", "etl")}
    assert next(iter(subject.buckets())).resolution is not None


def test_waiting_group_that_gets_much_more_is_noted():
    subject = engine()
    web = bucket(subject, "web")
    web.charge(3_000_000, START)  # more than the largest request: a request of that size may go out at once
    subject.group_buckets.divide({("produce", "web"): inf, ("produce", "etl"): 600.0}, 0.2, START)
    assert subject.group_buckets.raised
    subject.group_buckets.raised = False
    subject.group_buckets.divide({("produce", "web"): inf, ("produce", "etl"): 600.0}, 0.2, START)
    assert not subject.group_buckets.raised


def test_path_above_a_group_ends_at_its_root():
    parents = {"a": "b", "b": "c", "c": None, "x": "y", "y": "x", "z": "gone"}
    assert [lineage(name, parents) for name in ("a", "c", "x", "z")] == [["a", "b", "c"], ["c"], ["x", "y"], ["z"]]
    deep: dict[str, str | None] = {str(level): str(level + 1) for level in range(20)}
    assert len(lineage("0", deep)) == 8


def test_tree_has_groups_below_a_ceiling_only():
    rows = groups()
    table = QuotaTable([group.quota for group in rows])
    tree = KindTree(KEY, rows, table)
    assert tree.positions == {"all": 0, "etl": 1, "team": 2, "web": 3}
    assert tree.leaves == {"etl", "web"}
    assert tree.limits == dict.fromkeys(tree.positions, 1_000.0)
    assert tree.parents == {"all": None, "etl": "all", "team": "all", "web": "team"}
    assert KindTree("consumer_byte_rate", rows, table).groups == []


def test_group_whose_debt_is_forgiven_waits_no_longer():
    subject = engine()
    bucket(subject, "etl").charge(3_000_000, START)
    assert subject.group_buckets.measure(START + 1) == {("produce", "etl"): inf}
    clear_debts(subject.buckets(), DebtFilter.parse({"group": "etl"}), START + 1.5)
    assert subject.group_buckets.measure(START + 2) == {("produce", "etl"): inf}, "it waited until it was forgiven"
    assert subject.group_buckets.measure(START + 3) == {}
