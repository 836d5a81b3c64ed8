"""The gaps that refused batches leave in the sequences of idempotent producers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.sequence_gaps import MAX_GAPS, MAX_NAME_BYTES, SequenceGaps
from protocol.bodies.produced_topics import ProducedPartition
from tests.gateway.proxy import messages as m

LAST = 2**31 - 1


class Gaps:
    """`SequenceGaps` with the batches of a connection."""

    def __init__(self):
        self.table = SequenceGaps()

    def refuse(self, sequence, **rest):
        """A pause or a quota refuses the batch."""
        assert self._ask(sequence, refused=True, **rest)

    def passes(self, sequence, **rest):
        return not self._ask(sequence, refused=False, **rest)

    def _ask(self, sequence, *, refused, topic=b"t", partition=0, producer_id=7, epoch=0):
        frame = m.numbered_batch(sequence, producer_id, epoch)
        return self.table.refuses(frame, topic, ProducedPartition(partition, 0, 0, len(frame)), refused=refused)


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


@pytest.mark.parametrize("other", [{"topic": b"u"}, {"partition": 1}, {"producer_id": 8}])
def test_gap_concerns_one_partition_and_producer(other):
    gaps = Gaps()
    gaps.refuse(0)
    assert gaps.passes(10, **other)
    assert not gaps.passes(10)


def test_new_epoch_closes_a_gap():
    gaps = Gaps()
    gaps.refuse(10)
    assert gaps.passes(50, epoch=1)
    assert not gaps.table.pending


def test_refusal_in_a_new_epoch_replaces_a_gap():
    gaps = Gaps()
    gaps.refuse(10)
    gaps.refuse(50, epoch=1)
    assert gaps.passes(40, epoch=1)
    assert not gaps.passes(51, epoch=1)


@pytest.mark.parametrize("frame", [m.numbered_batch(0, producer_id=-1), bytes(70), b"short", b""])
def test_batch_without_a_sequence_leaves_no_gap(frame):
    table = SequenceGaps()
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
