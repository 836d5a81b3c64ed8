"""Pieces of a TLS client's bytes: they end with a record, whatever the chunks are."""

from bisect import bisect_left
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.tls.tls_records import MAX_RECORDS, PIECE_BYTES, RecordCounter


def record(size):
    return b"\x17\x03\x03" + size.to_bytes(2) + bytes(size)


def pieces(counter, chunk):
    """The pieces of one chunk."""
    ends = [0]
    while ends[-1] < len(chunk):
        ends.append(counter.end(memoryview(chunk), ends[-1]))
    return [chunk[begin:end] for begin, end in pairwise(ends)]


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        ([], []),
        ([100], [105]),
        ([0] * MAX_RECORDS, [5 * MAX_RECORDS]),
        ([0] * (MAX_RECORDS + 1), [5 * MAX_RECORDS, 5]),
        ([16_384] * 4, [49_167, 16_389]),
        ([16_384] * 2 + [16_000, 16_400], [65_188]),
    ],
)
def test_pieces_of_whole_records(sizes, lengths):
    made = pieces(RecordCounter(), b"".join(map(record, sizes)))
    assert [len(piece) for piece in made] == lengths


def test_cut_header_belongs_to_the_piece_before():
    counter = RecordCounter()
    assert counter.end(memoryview(record(7) + record(300)[:4]), 0) == 16
    assert pieces(counter, record(300)[4:] + record(1)) == [record(300)[4:] + record(1)]


@given(
    st.lists(st.sampled_from([0, 1, 22, 22, 22, 300, 16_384]), max_size=900),
    st.lists(st.integers(1, 70_000) | st.integers(1, 9), min_size=1, max_size=9),
)
def test_each_piece_has_few_records(sizes, cuts):
    stream, counter = b"".join(map(record, sizes)), RecordCounter()
    begins = list(accumulate((len(record(size)) for size in sizes), initial=0))
    pos = number = 0
    while pos < len(stream):
        chunk = stream[pos : pos + cuts[number % len(cuts)] * (1 if number < 50 else 100)]
        number += 1
        made = pieces(counter, chunk)
        for piece in made:
            assert len(piece) <= PIECE_BYTES + 16_389
            assert bisect_left(begins, pos + len(piece)) - bisect_left(begins, pos) <= MAX_RECORDS + 1
            pos += len(piece)
            assert piece is made[-1] or begins[bisect_left(begins, pos)] == pos, "a piece ends inside a record"
