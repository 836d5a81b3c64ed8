"""The lag in a Fetch response: all versions, any chunks, several partitions, and bytes that are no response."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_keys import ApiKey
from protocol.bodies.lag_scanner import MAX_HELD_BYTES, LagScanner
from tests.protocol import codec
from tests.protocol.golden import golden
from tests.protocol.samples import response_frame, with_header_tag

VERSIONS = range(19)
REAL = golden(ApiKey.FETCH)


def lag_of(version, frame, cuts=()):
    """Return the lag of a frame that is fed in separate buffers, which end at `cuts`."""
    scanner = LagScanner(version)
    for start, end in itertools.pairwise([0, *sorted(cuts), len(frame)]):
        scanner.feed(b"???" + frame[start:end] + b"???", 3, 3 + end - start)
    return scanner.lag()


def partition(version, first, high_watermark, size=100, aborted=0):
    records = None if first is None else first.to_bytes(8, "big") + bytes(size - 8)
    found = {"partition_index": 1, "error_code": 0, "high_watermark": high_watermark, "records": records}
    if version >= 4 and aborted:
        found["aborted_transactions"] = [{"producer_id": 1, "first_offset": 2}] * aborted
    return found


def response(version, *topics):
    name = {"topic": "t"} if version < 13 else {}
    return codec.encode_response(ApiKey.FETCH, version, {"responses": [name | {"partitions": [*each]} for each in topics]})


@pytest.mark.parametrize("version", VERSIONS)
def test_lag_is_that_of_most_bytes(version):
    tail = partition(version, 990, 1_000, 300)
    behind = partition(version, 5, 1_000, 400, aborted=3)
    idle = partition(version, None, 1_000)
    for topics, lag in [
        ([[tail]], 10),
        ([[tail, behind]], 995),
        ([[tail, idle], [], [behind]], 995),
        ([[tail], [behind, tail, idle]], 10),
        ([[idle], [idle]], -1),
        ([], -1),
    ]:
        frame = response(version, *topics)
        assert lag_of(version, frame) == lag_of(version, frame, range(len(frame))) == lag
        if version >= 12:
            assert lag_of(version, with_header_tag(frame)) == lag


def test_equal_bytes_count_for_the_partition_behind():
    assert lag_of(12, response(12, [partition(12, 990, 1_000), partition(12, 5, 1_000)])) == 995


@pytest.mark.parametrize(
    ("first", "high_watermark", "size", "lag"),
    [(0, 2**62, 100, 2**62), (5, 5, 100, 0), (9, 5, 100, 0), (5, -1, 100, -1), (7, 9, 8, 2)],
)
def test_odd_offsets(first, high_watermark, size, lag):
    assert lag_of(12, response(12, [partition(12, first, high_watermark, size)])) == lag


@pytest.mark.parametrize("real", REAL, ids=str)
def test_lag_of_a_real_response(real):
    decoded = codec.decode_response(ApiKey.FETCH, real.version, real.frame)
    partitions = [each for topic in decoded["responses"] for each in topic["partitions"] if each["records"]]
    lags = [each["high_watermark"] - int.from_bytes(each["records"][:8], "big") for each in partitions]
    assert len(lags) <= 1
    assert lag_of(real.version, real.frame) == (lags[0] if lags else -1)


@given(st.data())
def test_any_chunking_finds_the_same_lag(data):
    version, seed = data.draw(st.sampled_from(VERSIONS)), data.draw(st.integers(0, 50))
    frame = response_frame(ApiKey.FETCH, version, random.Random(seed))
    cuts = data.draw(st.lists(st.integers(0, len(frame)), max_size=12))
    assert lag_of(version, frame, cuts) == lag_of(version, frame)


@given(st.data())
def test_invalid_bytes_never_raise(data):
    version = data.draw(st.sampled_from(VERSIONS))
    frame = bytearray(response(version, [partition(version, 5, 1_000, aborted=2)] * 2))
    for at in data.draw(st.lists(st.integers(0, len(frame) - 1), min_size=1, max_size=4)):
        frame[at] = data.draw(st.integers(0, 255))
    lag_of(version, bytes(frame), data.draw(st.lists(st.integers(0, len(frame)), max_size=4)))


@pytest.mark.parametrize("version", [11, 12])
def test_overrun_of_the_frame_gives_no_lag(version):
    frame = response(version, [partition(version, 5, 1_000)])
    assert lag_of(version, (len(frame) - 50).to_bytes(4, "big") + frame[4:]) == -1


@pytest.mark.parametrize("version", [10, 12])
def test_frame_that_ends_with_records_gives_no_lag_in_any_chunks(version):
    """More partitions are announced, and the last chunk has records only."""
    frame = response(version, [partition(version, 5, 1_000)])
    records_end = len(frame) - (3 if version >= 12 else 0)
    more = (9).to_bytes(4, "big") if version < 12 else b"\x0a"
    at = frame.index(b"t") + 1
    frame = (records_end - 4).to_bytes(4, "big") + frame[4:at] + more + frame[at + len(more) : records_end]
    assert [lag_of(version, frame, cuts) for cuts in ([], range(len(frame)), [len(frame) - 20])] == [-1] * 3


def test_no_records_and_no_long_lists_are_kept():
    frame = response(12, [partition(12, 5, 1_000, 300_000, aborted=200)])
    scanner = LagScanner(12)
    for at in range(0, len(frame), 1_000):
        scanner.feed(frame, at, min(at + 1_000, len(frame)))
        assert len(scanner._held) <= 200 * 17 + 100
    assert scanner.lag() == 995
    scanner = LagScanner(12)
    frame = response(12, [partition(12, 5, 1_000, aborted=MAX_HELD_BYTES // 16)])
    scanner.feed(frame, 0, MAX_HELD_BYTES + 100)
    scanner.feed(frame, MAX_HELD_BYTES + 100, len(frame))
    assert (scanner._held, scanner.lag()) == (b"", -1)
