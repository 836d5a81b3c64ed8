import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_keys import ApiKey
from protocol.bodies.tail_scanner import TailScanner
from protocol.errors import InvalidFrame
from tests.protocol import codec
from tests.protocol.golden import GOLDEN
from tests.protocol.samples import response_frame, with_header_tag, with_length

FIRST = {ApiKey.FETCH: 16, ApiKey.SHARE_FETCH: 0, ApiKey.SHARE_ACKNOWLEDGE: 0}
LAST = {ApiKey.FETCH: 18, ApiKey.SHARE_FETCH: 2, ApiKey.SHARE_ACKNOWLEDGE: 2}
KINDS = [(key, version) for key in FIRST for version in range(FIRST[key], LAST[key] + 1)]
REAL = [real for real in GOLDEN if (real.api_key, real.version) in KINDS]
ONE_BYTE_TAIL, TWO_BYTE_TAIL = b"\x00", b"\x01\x00"


def empty_tail(key):
    return ONE_BYTE_TAIL if key == ApiKey.FETCH else TWO_BYTE_TAIL


def scanned(key, version, frame, cuts=()):
    """Return the number of bytes before the section, with the frame fed in separate buffers that end at `cuts`."""
    scanner = TailScanner(key, version)
    before = 0
    edges = [0, *sorted(cuts), len(frame)]
    for start, end in itertools.pairwise(edges):
        padded = b"???" + frame[start:end] + b"???"
        taken = scanner.feed(padded, 3, 3 + end - start)
        assert taken == end - start or scanner.reached
        before += taken
    assert scanner.reached
    return before


@pytest.mark.parametrize("real", REAL, ids=str)
def test_section_of_a_real_response_is_its_rest(real):
    before = scanned(real.api_key, real.version, real.frame)
    assert real.frame[before:] == empty_tail(real.api_key)


@pytest.mark.parametrize(("key", "version"), KINDS)
@pytest.mark.parametrize("seed", range(25))
def test_section_of_an_encoded_response_is_found(key, version, seed):
    frame = response_frame(key, version, random.Random(seed), node_endpoints=[])
    before = scanned(key, version, frame)
    assert len(frame) - before == len(empty_tail(key))
    endpoints = [{"node_id": 1, "host": "h", "port": 2}]
    longer = response_frame(key, version, random.Random(seed), node_endpoints=endpoints)
    assert scanned(key, version, longer) == before
    tagged = with_header_tag(frame)
    assert scanned(key, version, tagged) == before + 5


@given(st.data())
def test_any_chunking_finds_the_same_section(data):
    key, version = data.draw(st.sampled_from(KINDS))
    frame = response_frame(key, version, random.Random(data.draw(st.integers(0, 30))))
    cuts = data.draw(st.lists(st.integers(0, len(frame)), max_size=12))
    assert scanned(key, version, frame, cuts) == scanned(key, version, frame)


@pytest.mark.parametrize("real", REAL, ids=str)
def test_single_bytes_find_the_same_section(real):
    whole = scanned(real.api_key, real.version, real.frame)
    assert scanned(real.api_key, real.version, real.frame, range(len(real.frame))) == whole


def test_reached_scanner_takes_no_more_bytes():
    real = REAL[0]
    scanner = TailScanner(real.api_key, real.version)
    before = len(real.frame) - 1
    assert scanner.feed(real.frame, 0, before) == before
    assert scanner.reached
    assert scanner.feed(real.frame, before, before + 1) == 0


@pytest.mark.parametrize("real", REAL, ids=str)
def test_frame_too_short_for_its_fields_is_invalid(real):
    for cut in range(4, len(real.frame)):
        short = with_length(real.frame[4:cut])
        scanner = TailScanner(real.api_key, real.version)
        try:
            scanner.feed(short, 0, len(short))
        except InvalidFrame:
            continue
        assert scanner.reached  # a share response without its last byte still has the endpoints' first one
        assert cut == len(real.frame) - 1
        assert len(empty_tail(real.api_key)) == 2


@pytest.mark.parametrize(("key", "version"), KINDS)
def test_start_of_a_real_frame_waits_for_more(key, version):
    frame = response_frame(key, version, random.Random(5))
    end = scanned(key, version, frame)
    for cut in range(end):
        scanner = TailScanner(key, version)
        assert scanner.feed(frame, 0, cut) == cut
        assert not scanner.reached


@pytest.mark.parametrize(("key", "version"), KINDS)
@given(data=st.binary(max_size=120))
def test_random_bytes_are_counted_or_invalid(key, version, data):
    scanner = TailScanner(key, version)
    try:
        taken = scanner.feed(with_length(data) + data, 0, 4 + 2 * len(data))
    except InvalidFrame:
        return
    assert 0 <= taken <= 4 + 2 * len(data)


def test_negative_length_is_invalid():
    with pytest.raises(InvalidFrame):
        TailScanner(ApiKey.FETCH, 16).feed(b"\xff\xff\xff\xff", 0, 4)


def test_api_without_endpoints_has_no_scanner():
    with pytest.raises(KeyError):
        TailScanner(ApiKey.METADATA, 12)


@pytest.mark.parametrize("size", [0, 126, 127, 128, 16_383, 16_384, 3_000_000])
def test_records_of_any_size_are_skipped_in_stretches(size):
    partition = {"partition_index": 0, "error_code": 0, "high_watermark": 0, "records": bytes(size)}
    frame = codec.encode_response(ApiKey.FETCH, 16, {"responses": [{"partitions": [partition, partition]}]})
    assert scanned(ApiKey.FETCH, 16, frame, range(0, len(frame), 65_536)) == len(frame) - 1
    assert scanned(ApiKey.FETCH, 16, frame) == len(frame) - 1
