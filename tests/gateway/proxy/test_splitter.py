"""The splitter by itself: the bytes that it forwards, keeps and drops."""

import pytest

from gateway.proxy.collected import UNCOUNTED_BYTES, CollectBudget
from gateway.proxy.splitter import Splitter
from gateway.proxy.wire import PassingWriter


class Split:
    """A splitter, and all that it has forwarded."""

    def __init__(self):
        self.out = []
        self.splitter = Splitter(PassingWriter(self.out.append), 1_000, CollectBudget())

    def begin(self, data):
        assert self.splitter.add(data)
        return self.splitter


def state(splitter):
    return splitter.inside_request, splitter.begun, splitter.unfinished, splitter.irregular


def test_new_splitter_has_nothing():
    splitter = Split().splitter
    assert (splitter.data, splitter.pos, splitter.held) == (b"", 0, b"")
    assert state(splitter) == (False, False, False, False)


def test_requests_of_a_chunk_go_out_in_one_piece():
    s = Split()
    chunk = b"aaabbbb"
    splitter = s.begin(chunk)
    for after in (3, 7):
        splitter.forward(after)
    splitter.flush()
    splitter.finish()
    assert s.out == [chunk]
    assert s.out[0] is chunk, "it is not copied"
    assert (splitter.data, splitter.pos) == (b"", 0)
    assert state(splitter) == (False, False, False, False)


def test_rest_of_a_forwarded_request_is_forwarded():
    s = Split()
    splitter = s.begin(b"aaab")
    splitter.forward(6)
    splitter.finish()
    assert state(splitter) == (True, True, True, False)
    s.begin(b"bbcc")
    assert splitter.pos == 2
    splitter.forward(4)
    splitter.finish()
    assert s.out == [b"aaab", b"bbcc"]
    assert state(splitter) == (False, False, False, False)


@pytest.mark.parametrize("chunks", [[b"aaabbbbcc"], [b"aaabb", b"bbcc"], [b"aaab", b"b", b"b", b"bcc"], [b"aaabbbb", b"cc"]])
def test_dropped_request_is_never_forwarded(chunks):
    s = Split()
    splitter = s.begin(chunks[0])
    splitter.forward(3)
    splitter.drop(7)
    whole = len(chunks[0]) >= 7
    if len(chunks[0]) > 7:
        splitter.forward(9)
    splitter.finish()
    assert splitter.irregular is not whole
    for chunk in chunks[1:]:
        s.begin(chunk)
        if chunk.endswith(b"cc"):
            assert splitter.pos == len(chunk) - 2
            splitter.forward(len(chunk))
        splitter.finish()
    assert b"".join(s.out) == b"aaacc"
    assert state(splitter) == (False, False, False, False)


@pytest.mark.parametrize("arrived", [5, 7, 9])
def test_replaced_request_goes_out_in_its_place(arrived):
    s = Split()
    splitter = s.begin(b"aaabbbbcc"[:arrived])
    splitter.forward(3)
    splitter.replace(7, b"NEW")
    if arrived == 9:
        splitter.forward(9)
    splitter.finish()
    if arrived < 9:
        s.begin(b"aaabbbbcc"[arrived:])
        splitter.forward(9 - arrived)
        splitter.finish()
    assert b"".join(s.out) == {5: b"aaaNEWbbcc", 7: b"aaaNEWcc", 9: b"aaaNEWcc"}[arrived]


@pytest.mark.parametrize("by", [1, 2, 3, 4])
def test_collected_request_comes_back_whole(by):
    s = Split()
    splitter = s.begin(b"aaabb")
    splitter.forward(3)
    splitter.collect(9, records=True)
    splitter.finish()
    assert s.out == [b"aaa"]
    assert state(splitter) == (True, False, True, True)
    rest = b"bbbb"
    for start in range(0, 4, by):
        added = splitter.add(rest[start : start + by])
        assert added is (start + by >= 4)
    assert (splitter.data, splitter.pos) == (b"bbbbbb", 0)
    splitter.forward(6)
    splitter.finish()
    assert s.out == [b"aaa", b"bbbbbb"]
    assert state(splitter) == (False, False, False, False)


def test_bytes_behind_a_collected_request_follow_it():
    s = Split()
    splitter = s.begin(b"bb")
    splitter.collect(4, records=True)
    splitter.finish()
    s.begin(b"bbccc")
    assert (splitter.data, splitter.pos) == (b"bbbbccc", 0)


def test_abandoned_bytes_return_to_the_budget():
    budget = CollectBudget()
    splitter = Splitter(PassingWriter([].append), 100_000, budget)
    splitter.add(b"aaa" + bytes(UNCOUNTED_BYTES + 5))
    splitter.forward(3)
    splitter.collect(90_000, records=False)
    assert budget.requests.held == 5
    splitter.abandon()
    assert budget.requests.held == 0


def test_held_bytes_wait_until_their_release():
    s = Split()
    splitter = s.begin(b"aaabb")
    splitter.forward(3)
    splitter.hold()
    splitter.finish()
    assert s.out == [b"aaa"]
    assert state(splitter) == (False, False, False, True)
    for chunk in (b"bb", b"cc"):
        assert not splitter.add(chunk)
    assert splitter.release() == b"bbbbcc"
    assert splitter.held == b""


def test_incomplete_head_waits_for_more():
    s = Split()
    splitter = s.begin(b"aaa\0\0")
    splitter.forward(3)
    splitter.hold_head(7)
    splitter.finish()
    assert s.out == [b"aaa"]
    assert state(splitter) == (False, False, True, True)
    s.begin(b"\0")
    assert splitter.data == b""
    splitter.finish()
    s.begin(b"\1xx")
    assert (splitter.data, splitter.pos) == (b"\0\0\0\1xx", 0)


def test_last_missing_byte_belongs_to_the_request():
    splitter = Split().begin(b"aaab")
    splitter.forward(5)
    splitter.finish()
    assert state(splitter) == (True, True, True, False)


def test_request_is_collected_from_its_first_byte():
    splitter = Split().begin(b"a")
    splitter.collect(4, records=True)
    splitter.finish()
    assert state(splitter) == (True, False, True, True)


def test_whole_request_counts_until_it_is_no_longer_held():
    budget = CollectBudget()
    splitter = Splitter(PassingWriter([].append), 100_000, budget)
    splitter.add(bytes(UNCOUNTED_BYTES + 5))
    splitter.collect(UNCOUNTED_BYTES + 7, records=True)
    splitter.finish()
    splitter.add(b"ab")
    splitter.hold()
    splitter.finish()
    assert budget.records.held == 7
    splitter.add(splitter.release())
    splitter.forward(UNCOUNTED_BYTES + 7)
    splitter.finish()
    assert budget.records.held == 0
