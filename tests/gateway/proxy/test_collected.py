"""The budgets of requests that are collected, over several connections."""

import pytest

from gateway.proxy.collected import MAX_COLLECTED_BYTES, MAX_RECORDS_BYTES, UNCOUNTED_BYTES, CollectBudget, Collected
from gateway.proxy.handler import EndConnection

PIECE = memoryview(bytes(UNCOUNTED_BYTES))
MOST = memoryview(bytes(MAX_COLLECTED_BYTES))


def test_connection_that_holds_most_is_ended():
    budget = CollectBudget()
    one, other = Collected(budget), Collected(budget)
    one.begin(MOST, records=False)
    one.add(PIECE)
    other.begin(PIECE, records=False)
    other.add(PIECE[:1])  # too many together, but this connection has few
    with pytest.raises(EndConnection, match="unfinished requests") as caught:
        one.add(PIECE[:1])
    assert caught.value.limit == "collected_bytes"


def test_collected_bytes_are_given_back():
    budget = CollectBudget()
    one, other = Collected(budget), Collected(budget)
    one.begin(MOST, records=False)
    other.begin(MOST[: 2 * UNCOUNTED_BYTES], records=False)
    assert len(one.take(memoryview(b""))) == MAX_COLLECTED_BYTES
    assert not one
    one.drop()
    other.drop()
    assert (budget.requests.held, budget.requests.holders) == (0, 0)


@pytest.mark.parametrize("records", [True, False])
def test_next_request_is_counted_by_its_own_budget(records):
    """Even if the bytes of a request of the other kind still count."""
    budget = CollectBudget()
    one = Collected(budget)
    one.begin(MOST, records=records)
    one.take(memoryview(b""))
    one.begin(PIECE, records=not records)
    assert (budget.records.held, budget.requests.held) == (0, 0)
    one.drop()
    assert (budget.records.held, budget.records.holders, budget.requests.held, budget.requests.holders) == (0, 0, 0, 0)


def test_small_requests_pass_an_exhausted_budget():
    budget = CollectBudget()
    with pytest.raises(EndConnection):
        Collected(budget).begin(memoryview(bytes(MAX_COLLECTED_BYTES + UNCOUNTED_BYTES + 1)), records=False)
    small = Collected(budget)
    small.begin(PIECE, records=False)
    assert small.take(memoryview(b"rest")) == bytes(PIECE) + b"rest"


def test_equal_connections_share_the_budget():
    budget = CollectBudget()
    several = [Collected(budget) for _ in range(8)]
    for each in several:
        each.begin(MOST[: UNCOUNTED_BYTES + MAX_COLLECTED_BYTES // 8], records=False)
    for each in several:
        with pytest.raises(EndConnection):
            each.add(PIECE)
        each.drop()
        each.begin(MOST[: UNCOUNTED_BYTES + MAX_COLLECTED_BYTES // 8], records=False)


def test_produce_requests_have_a_larger_budget():
    budget = CollectBudget()
    produce = Collected(budget)
    produce.begin(MOST, records=True)
    assert (budget.requests.held, budget.records.held) == (0, MAX_COLLECTED_BYTES - UNCOUNTED_BYTES)
    for _ in range(MAX_RECORDS_BYTES // len(MOST) - 1):
        produce.add(MOST)
    produce.add(PIECE)
    with pytest.raises(EndConnection):
        produce.add(PIECE[:1])
