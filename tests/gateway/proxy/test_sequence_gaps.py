"""The gaps that refused batches leave in the sequences of idempotent producers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.collected import UNCOUNTED_BYTES, Budget, CollectBudget
from gateway.proxy.handler import EndConnection
from gateway.proxy.produce_gate import ProduceGate
from gateway.proxy.sequence_gaps import GAP_BYTES, MAX_GAPS, SequenceGaps
from protocol.api_keys import ApiKey
from protocol.bodies.produced_topics import ProducedPartition
from protocol.bodies.topic_lists import MAX_NAME_BYTES
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import Transcript, limits
from tests.protocol import codec

LAST = 2**31 - 1


class Gaps:
    """`SequenceGaps` with the batches of a connection."""

    def __init__(self, budget=None):
        self.table = SequenceGaps(budget or CollectBudget().gaps)

    def refuse(self, sequence, **rest):
        """A pause or a quota refuses the batch."""
        assert self._ask(sequence, refused=True, **rest)

    def passes(self, sequence, **rest):
        return not self._ask(sequence, refused=False, **rest)

    def _ask(self, sequence, *, refused, topic=b"t", partition=0, producer_id=7, epoch=0):
        frame = m.numbered_batch(sequence, producer_id, epoch)
        found = self.table.refuses(frame, topic, ProducedPartition(partition, 0, 0, len(frame)), refused=refused)
        self.table.settle()
        return found


# The refused batches, the next batch, if it passes, and if a gap is left.
CASES = {
    "no gap": ([], 10, True, False),
    "the missing batch": ([10], 10, True, False),
    "behind the gap": ([10], 11, False, True),
    "before the gap": ([10], 9, True, True),
    "the first of two": ([10, 20], 10, True, False),
    "behind both of two": ([10, 20], 21, False, True),
    "between two": ([10, 20], 15, True, False),
    "the second of two, once more": ([10, 20], 20, True, False),
    "the later one first": ([20, 10], 20, False, True),
    "the earlier one second": ([20, 10], 10, True, False),
    "behind the wrap": ([LAST - 4], 3, False, True),
    "before the wrap": ([3], LAST - 4, True, True),
}


@pytest.mark.parametrize(("refused", "sequence", "passes", "pending"), CASES.values(), ids=CASES)
def test_batch_behind_a_gap_is_refused(refused, sequence, passes, pending):
    gaps = Gaps()
    for missing in refused:
        gaps.refuse(missing)
    assert gaps.passes(sequence) == passes
    assert gaps.table.pending == pending


def test_later_batches_wait_for_the_missing_one():
    gaps = Gaps()
    gaps.refuse(10)
    assert [gaps.passes(sequence) for sequence in (11, 12, 10, 11, 12)] == [False, False, True, True, True]


def test_later_batch_that_comes_again_ends_a_gap():
    gaps = Gaps()
    gaps.refuse(10)
    assert [gaps.passes(sequence) for sequence in (11, 12, 11, 12)] == [False, False, True, True]
    assert not gaps.table.pending


def test_refused_again_the_missing_batch_holds_later_ones_back():
    gaps = Gaps()
    gaps.refuse(10)
    assert not gaps.passes(11)
    gaps.refuse(10)
    assert [gaps.passes(sequence) for sequence in (11, 10, 11)] == [False, True, True]


@pytest.mark.parametrize("other", [{"topic": b"u"}, {"partition": 1}])
def test_gap_concerns_one_partition(other):
    gaps = Gaps()
    gaps.refuse(0)
    assert gaps.passes(10, **other)
    assert not gaps.passes(10)


@pytest.mark.parametrize("again", [{"epoch": 1}, {"producer_id": 8}])
def test_producer_that_begins_again_closes_a_gap(again):
    """A client has one producer a connection. It takes no old batch again after the first one of its new id or epoch."""
    gaps = Gaps()
    gaps.refuse(10)
    assert gaps.passes(50, **again)
    assert not gaps.table.pending


def test_refusal_in_a_new_epoch_replaces_a_gap():
    gaps = Gaps()
    gaps.refuse(10)
    gaps.refuse(50, epoch=1)
    assert gaps.passes(40, epoch=1)
    assert not gaps.passes(51, epoch=1)


@pytest.mark.parametrize("frame", [m.numbered_batch(0, producer_id=-1), bytes(70), b"short", b""])
def test_batch_without_a_sequence_leaves_no_gap(frame):
    table = SequenceGaps(CollectBudget().gaps)
    partition = ProducedPartition(0, 0, 0, len(frame))
    assert table.refuses(frame, b"t", partition, refused=True)
    assert not table.refuses(frame, b"t", partition, refused=False)
    assert not table.pending


def test_names_that_no_topic_can_have_leave_no_gap():
    gaps = Gaps()
    gaps.refuse(10, topic=b"t" * (MAX_NAME_BYTES + 1))
    assert not gaps.table.pending
    gaps.refuse(10, topic=b"t" * MAX_NAME_BYTES)
    assert gaps.table.pending


def test_oldest_of_many_gaps_is_forgotten():
    gaps = Gaps()
    for partition in range(MAX_GAPS + 1):
        gaps.refuse(0, partition=partition)
    assert len(gaps.table._missing) == MAX_GAPS
    assert gaps.passes(1, partition=0)
    assert not gaps.passes(1, partition=1)


def test_gaps_count_until_the_batches_come_again():
    budget = Budget(10**6, "gaps")
    gaps = Gaps(budget)
    for partition in range(100):
        gaps.refuse(0, partition=partition)
        gaps.refuse(0, partition=partition)
    assert budget.held == 100 * (GAP_BYTES + 1) - UNCOUNTED_BYTES
    for partition in range(100):
        assert gaps.passes(0, partition=partition)
    assert (budget.held, gaps.table.pending) == (0, False)


def test_forgotten_gaps_do_not_count():
    budget = CollectBudget().gaps
    gaps = Gaps(budget)
    for partition in range(MAX_GAPS + 1_000):
        gaps.refuse(0, partition=partition)
    assert budget.held == MAX_GAPS * (GAP_BYTES + 1) - UNCOUNTED_BYTES


def test_connection_with_most_gaps_is_ended_for_another():
    budget = Budget(100_000, "gaps")
    most, few, ended = Gaps(budget), Gaps(budget), []
    most.table.evict = ended.append
    for partition in range(300):
        most.refuse(0, partition=partition)
    for partition in range(200):
        few.refuse(0, partition=partition)
    assert [error.limit for error in ended] == ["collected_bytes"]
    assert 0 < budget.held < 200 * (GAP_BYTES + 1)


def test_connection_beyond_the_budget_of_gaps_ends():
    gaps = Gaps(Budget(GAP_BYTES, "gaps"))
    for partition in range((UNCOUNTED_BYTES + GAP_BYTES) // (GAP_BYTES + 1)):
        gaps.refuse(0, partition=partition)
    with pytest.raises(EndConnection):
        gaps.refuse(0, partition=-1)


def numbered(correlation_id):
    """A Produce with a batch for each of 100 partitions."""
    partitions = [{"index": index, "records": m.numbered_batch(0)} for index in range(100)]
    values = {"acks": -1, "timeout_ms": 1, "topic_data": [{"name": "t", "partition_data": partitions}]}
    return codec.encode_request(ApiKey.PRODUCE, 9, values, correlation_id, "etl")


def refused_in_a_pause():
    """The session of a client whose batches a pause has refused, the budget of gaps, and the gate of the pause."""
    budget, gate = CollectBudget(), ProduceGate()
    gate.delay, gate.paused = 5.0, True
    t = Transcript(limits(), gate=gate, collect_budget=budget)
    t.client_sends(numbered(1))
    t.goes_on()
    assert budget.gaps.held == 100 * (GAP_BYTES + 1) - UNCOUNTED_BYTES
    return t, budget.gaps, gate


def test_gaps_of_a_client_that_has_gone_do_not_count():
    t, gaps, _ = refused_in_a_pause()
    t.core.close(t.now)
    assert gaps.held == 0


def test_gaps_do_not_count_after_the_pause():
    t, gaps, gate = refused_in_a_pause()
    gate.delay, gate.paused = 0.0, False
    t.passes(5.0)
    t.client_sends(numbered(2))
    t.goes_on()
    t.broker_got(numbered(2))
    assert gaps.held == 0


@given(st.integers(0, LAST), st.lists(st.lists(st.booleans(), max_size=6), max_size=6))
def test_batches_that_are_resent_in_order_pass_in_order(start, rounds):
    gaps = Gaps()
    expected = 0
    for refusals in [*rounds, [False] * 6]:
        for step in range(expected, 6):
            refused = refusals[step] if step < len(refusals) else False
            if not gaps._ask((start + step) % 2**31, refused=refused):
                assert step == expected
                expected += 1
    assert expected == 6
    assert not gaps.table.pending
