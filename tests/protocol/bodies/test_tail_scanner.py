import itertools
import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_keys import ApiKey, response_header_version
from protocol.bodies.tail_scanner import TailScanner
from protocol.errors import InvalidFrame
from tests.protocol import codec
from tests.protocol.golden import GOLDEN
from tests.protocol.samples import response_frame, with_header_tag, with_length

FIRST = {ApiKey.PRODUCE: 1, ApiKey.FETCH: 16, ApiKey.SHARE_FETCH: 0, ApiKey.SHARE_ACKNOWLEDGE: 0}
LAST = {ApiKey.PRODUCE: 13, ApiKey.FETCH: 18, ApiKey.SHARE_FETCH: 2, ApiKey.SHARE_ACKNOWLEDGE: 2}
ENDPOINTS_SINCE = FIRST | {ApiKey.PRODUCE: 10}
KINDS = [(key, version) for key in FIRST for version in range(FIRST[key], LAST[key] + 1)]
REAL = [real for real in GOLDEN if (real.api_key, real.version) in KINDS]


def empty_tail(key, version, throttle_time_ms=0):
    if key == ApiKey.PRODUCE:
        return throttle_time_ms.to_bytes(4, "big") + b"\x00" * (version >= 9)
    return b"\x00" if key == ApiKey.FETCH else b"\x01\x00"


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
    throttle_ms = codec.decode_response(real.api_key, real.version, real.frame)["throttle_time_ms"]
    assert real.frame[before:] == empty_tail(real.api_key, real.version, throttle_ms)


@pytest.mark.parametrize(("key", "version"), KINDS)
@pytest.mark.parametrize("seed", range(25))
def test_section_of_an_encoded_response_is_found(key, version, seed):
    frame = response_frame(key, version, random.Random(seed), node_endpoints=[])
    before = scanned(key, version, frame)
    assert len(frame) - before == len(empty_tail(key, version))
    if version >= ENDPOINTS_SINCE[key]:
        endpoints = [{"node_id": 1, "host": "h", "port": 2}]
        longer = response_frame(key, version, random.Random(seed), node_endpoints=endpoints)
        assert scanned(key, version, longer) == before
    if response_header_version(key, version) == 1:
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
    real = next(each for each in REAL if each.api_key == ApiKey.FETCH)
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
        assert real.api_key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE)


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


LEADER = {"leader_id": 3, "leader_epoch": 4}
RECORD_ERROR = {"batch_index": 1, "batch_index_error_message": "no key"}
RESULTS = [
    (1, {}),
    (8, {"error_message": "m" * 200}),
    (8, {"error_message": ""}),
    (8, {"record_errors": [RECORD_ERROR] * 3}),
    (10, {"current_leader": LEADER}),
]
"""The first version with the fields of a result, and these fields."""


def produced(version, results):
    """A frame with 40 results for each of two topics, which repeat `results`."""
    partitions = [
        {"index": number, "error_code": 6, "base_offset": -1, "log_append_time_ms": -1, "log_start_offset": -1}
        | results[number % len(results)]
        for number in range(40)
    ]
    topics = [{"name": name, "topic_id": uuid.UUID(int=7), "partition_responses": partitions} for name in ("t", "u" * 200)]
    return codec.encode_response(ApiKey.PRODUCE, version, {"responses": topics, "throttle_time_ms": 9})


@pytest.mark.parametrize("version", range(1, 14))
def test_produce_results_of_any_shape_are_skipped(version):
    plain, *others = [fields for since, fields in RESULTS if since <= version]
    for odd in others or [plain]:
        results = [odd, plain, plain, plain, odd, odd, plain]
        frame = produced(version, results)
        for step in (len(frame), 7, 64, 1_000):
            before = scanned(ApiKey.PRODUCE, version, frame, range(0, len(frame), step))
            assert frame[before:] == empty_tail(ApiKey.PRODUCE, version, 9)


@pytest.mark.parametrize("version", [1, 7, 8, 9, 13])
def test_more_plain_results_than_the_frame_has_are_invalid(version):
    frame = produced(version, [{}])
    end = scanned(ApiKey.PRODUCE, version, frame)
    for missing in (1, 3, 40, 100):
        short = with_length(frame[4 : end - missing])
        with pytest.raises(InvalidFrame):
            scanned(ApiKey.PRODUCE, version, short + frame)


@pytest.mark.parametrize("version", [1, 9])
def test_produce_without_room_for_throttle_and_tags_is_invalid(version):
    frame = produced(version, [{}])
    end = scanned(ApiKey.PRODUCE, version, frame)
    for kept in range(4 + (version == 9)):
        with pytest.raises(InvalidFrame):
            scanned(ApiKey.PRODUCE, version, with_length(frame[4 : end + kept]))


@pytest.mark.parametrize("length", [b"\xff\xfe", b"\x80\x00", b"\x7f\xff"])
def test_name_of_impossible_length_is_invalid(length):
    frame = produced(3, [{}])
    broken = frame[:12] + length + frame[14:]
    with pytest.raises(InvalidFrame):
        scanned(ApiKey.PRODUCE, 3, broken)


def test_acknowledged_partitions_of_any_shape_are_skipped():
    plain = {"partition_index": 1, "error_code": 0, "current_leader": LEADER}
    shapes = [plain, plain | {"error_message": "m" * 200}, plain | {"error_message": ""}, plain]
    topic = {"topic_id": uuid.UUID(int=7), "partitions": shapes * 5}
    frame = codec.encode_response(ApiKey.SHARE_ACKNOWLEDGE, 1, {"responses": [topic, topic]})
    for step in (len(frame), 5, 17, 100):
        before = scanned(ApiKey.SHARE_ACKNOWLEDGE, 1, frame, range(0, len(frame), step))
        assert frame[before:] == empty_tail(ApiKey.SHARE_ACKNOWLEDGE, 1)
