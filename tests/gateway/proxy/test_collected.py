"""The budget of requests that are collected, over several connections."""

import pytest

from gateway.proxy.collected import MAX_COLLECTED_BYTES, UNCOUNTED_BYTES, CollectBudget, Collected
from gateway.proxy.handler import EndConnection

PIECE = memoryview(bytes(UNCOUNTED_BYTES))
MOST = memoryview(bytes(MAX_COLLECTED_BYTES))


def test_collect_budget_is_shared_and_given_back():
    budget = CollectBudget()
    one, other = Collected(budget), Collected(budget)
    one.begin(MOST, limited=True)
    one.add(PIECE)
    other.begin(PIECE, limited=True)
    with pytest.raises(EndConnection, match="unfinished requests") as caught:
        other.add(PIECE[:1])
    assert caught.value.limit == "collected_bytes"
    other.drop()
    assert len(one.take()) == MAX_COLLECTED_BYTES + UNCOUNTED_BYTES
    assert not one
    assert budget.held == 0


def test_small_requests_pass_an_exhausted_budget():
    budget = CollectBudget()
    Collected(budget).begin(memoryview(bytes(MAX_COLLECTED_BYTES + UNCOUNTED_BYTES)), limited=True)
    small = Collected(budget)
    with pytest.raises(EndConnection):
        Collected(budget).begin(memoryview(bytes(UNCOUNTED_BYTES + 1)), limited=True)
    budget.held = MAX_COLLECTED_BYTES
    small.begin(PIECE, limited=True)
    assert small.take() == bytes(PIECE)


def test_produce_requests_do_not_use_collect_budget():
    budget = CollectBudget()
    produce = Collected(budget)
    produce.begin(MOST, limited=False)
    produce.add(MOST)
    assert budget.held == 0
