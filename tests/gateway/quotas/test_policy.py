"""The moments at which buckets mark their totals, and the sums over all decisions of a kind."""

import pytest

from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.meter import Window
from gateway.quotas.policy import KindTotals, Policy
from gateway.quotas.quota_table import QuotaTable
from gateway.quotas.settings import QuotaSettings

START = 1_000.0


def marks_at(policy, second):
    policy.tick(START + second)
    return policy.marking


@pytest.mark.parametrize(
    ("window", "marks", "span", "marking"),
    [
        (Window(11, 1.0), 11, 10.0, [True, True, True]),
        (Window(1, 1.0), 2, 1.0, [True, True, True]),
        (Window(121, 1.0), 121, 120.0, [True, True, True]),
        (Window(122, 1.0), 61, 120.0, [False, True, False]),
        (Window(10, 30.0), 100, 297.0, [False, False, True]),
    ],
)
def test_marks_cover_the_window(window, marks, span, marking):
    policy = Policy(True, window, START)
    assert (policy.times, policy.span, policy.newest, policy.enforce) == ([START] * marks, span, 0, True)
    assert [marks_at(policy, second) for second in (1, 2, 3)] == marking


def test_marks_are_a_ring():
    policy = Policy(True, Window(3, 1.0), START)
    assert policy.oldest == 1
    for second in range(1, 5):
        policy.tick(START + second)
    assert (policy.newest, policy.oldest) == (1, 2)
    assert policy.times == [START + 3, START + 4, START + 2]


@pytest.mark.parametrize(
    ("window", "now", "kept", "newest"),
    [
        (Window(3, 1.0), 4.0, [2, 0, 1], 2),
        (Window(2, 1.0), 4.0, [0, 1], 1),
        (Window(5, 1.0), 4.0, [2, 2, 2, 0, 1], 4),
        (Window(3, 1.0), 6.0, [0, 0, 1], 2),
        (Window(3, 1.0), 90.0, [1, 1, 1], 2),
    ],
)
def test_new_window_keeps_the_marks_within(window, now, kept, newest):
    before = Policy(True, Window(3, 1.0), START)
    for second in range(1, 5):
        before.tick(START + second)
    policy = Policy(True, window, START + now)
    assert policy.follow(before, START + now) == kept
    assert policy.times == [before.times[place] for place in kept]
    assert policy.newest == newest


def test_decisions_are_counted_by_their_delay():
    totals = KindTotals()
    assert (totals.counts, totals.seconds) == ([0] * 12, 0.0)
    for delay in (0.001, 0.0005, 0.5, 0.75, 1_000.0):
        totals.note(delay)
    assert totals.counts == [2, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1]
    assert totals.seconds == pytest.approx(1_001.2515)
    totals.correct(1_000.0, 0.25)
    assert totals.counts == [2, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0]
    assert totals.seconds == pytest.approx(1.5015)


def test_quotas_smaller_than_a_request_are_counted():
    limits = [
        {"producer_byte_rate": 1.0},
        {"producer_byte_rate": 2.0, "consumer_byte_rate": 1e9},
        {"controller_mutation_rate": 1.0},
    ]
    table = QuotaTable(EntityQuota(ClientQuotaEntity(f"u{number}"), each) for number, each in enumerate(limits))
    found = table.small_quotas()
    assert (found["produce"], found["fetch"]) == (2, 0)
    assert found["controller_mutation"] == 1
    altered, _ = table.altered({ClientQuotaEntity("u0"): {"producer_byte_rate": 1e9}})
    assert altered.small_quotas()["produce"] == 1
    assert table.small_quotas() is found


def test_small_quotas_are_counted_in_the_preparation():
    quotas = (EntityQuota(ClientQuotaEntity("u"), {"producer_byte_rate": 1.0}),)
    engine = QuotaEngine(QuotaSettings(), 0.0)
    (change,) = engine.prepare(QuotaSettings(quotas))
    assert change.after._small_quotas == {**engine.small_quotas(), "produce": 1}


def test_new_policy_marks_with_its_first_tick():
    policy = Policy(True, Window(3, 1.0), START)
    assert policy.marking is False
    assert marks_at(policy, 1.0) is True
