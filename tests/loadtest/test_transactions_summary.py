"""The plan of faults, the throttled time and the summary of the transactions scenario."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from loadtest.scenarios.transactions.checker import Kind
from loadtest.scenarios.transactions.faults import KINDS, plan_of
from loadtest.scenarios.transactions.recorder import covered
from loadtest.scenarios.transactions.run import Report
from loadtest.scenarios.transactions.summary import add_report, markdown, only_through_weir

DIRECT = Report(
    seed=1,
    via="direct",
    seconds=60.0,
    operations={"appender": {"fail": 2, "ok": 5}, "sender": {"info": 1}},
    records_read=40,
    throttled_part={"appender-0": 0.0},
    faults={"kill broker": 2},
    anomalies={Kind.WRITE_CYCLE.value: 3},
    examples={},
    client_errors=4,
)
WEIR = replace(
    DIRECT, via="weir", throttled_part={"appender-0": 0.5, "sender-0": 0.9}, faults={"kill broker": 2, "kill gateway": 1}
)


def test_plan_repeats_with_its_seed_and_has_every_fault():
    plan = plan_of(3, 200.0)
    assert plan == plan_of(3, 200.0) != plan_of(4, 200.0)
    assert {fault.kind for fault in plan} == set(KINDS)
    assert all(former.at < latter.at < 200.0 for former, latter in pairwise(plan))


@pytest.mark.parametrize(
    ("intervals", "limit", "seconds"),
    [
        ([], 10.0, 0.0),
        ([(1.0, 2.0), (5.0, 7.0)], 10.0, 3.0),
        ([(5.0, 8.0), (1.0, 6.0), (2.0, 3.0)], 10.0, 7.0),
        ([(8.0, 20.0)], 10.0, 2.0),
        ([(11.0, 20.0)], 10.0, 0.0),
    ],
)
def test_throttled_seconds_count_overlaps_once(intervals, limit, seconds):
    assert covered(intervals, limit) == seconds


def test_summary_names_classes_only_weir_has(tmp_path):
    file = tmp_path / "transactions.json"
    add_report(file, DIRECT)
    rows = add_report(file, replace(WEIR, anomalies={Kind.WRITE_CYCLE.value: 1, Kind.TORN.value: 2}))
    assert only_through_weir(rows) == [Kind.TORN.value] == json.loads(file.read_text())["only_through_weir"]
    assert "only runs through Weir have: torn transaction." in markdown(rows)
    rows = add_report(file, WEIR)
    assert len(rows) == 2, "the second report of a run replaces the first"
    assert only_through_weir(rows) == []


def test_summary_adds_up_both_ways(tmp_path):
    file = tmp_path / "transactions.json"
    for report in (DIRECT, WEIR, replace(DIRECT, seed=2), replace(WEIR, seed=2)):
        rows = add_report(file, report)
    lines = markdown(rows).splitlines()
    assert "| runs | 2 | 2 |" in lines
    assert "| appender: ok, fail, info | 10, 4, 0 | 10, 4, 0 |" in lines
    assert "| part of the time throttled, mean of clients | 0.00 | 0.70 |" in lines
    assert "| kill gateway | 0 | 2 |" in lines
    assert "| lost write | 0 | 0 |" in lines
