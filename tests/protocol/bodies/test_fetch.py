import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_keys import ApiKey
from protocol.bodies.fetch import (
    acquisition_lock_ms,
    batch_size,
    empty_response,
    find_records,
    idle_partitions,
    peek_fetch,
    top_level_error,
    with_limits,
)
from protocol.errors import Incomplete, InvalidFrame
from protocol.headers import parse_request_header
from tests.protocol import codec
from tests.protocol.golden import golden
from tests.protocol.samples import response_frame, response_values, with_header_tag

VERSIONS = range(19)
TOPICS = {
    False: [],
    True: [{"partitions": [{"partition": 0, "fetch_offset": 5, "partition_max_bytes": 7}]}],
}


def request(version, has_topics):
    values = {"max_wait_ms": 500, "min_bytes": 2, "topics": TOPICS[has_topics]}
    if version < 13:
        values["topics"] = [topic | {"topic": "t"} for topic in values["topics"]]
    if version >= 3:
        values["max_bytes"] = 1 << 20
    if version >= 7:
        values |= {"session_id": 77, "session_epoch": 8}
    frame = codec.encode_request(ApiKey.FETCH, version, values, 1, "client")
    return frame, parse_request_header(frame, 4, len(frame)).body_offset


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("has_topics", [False, True])
def test_head_of_any_request_is_read(version, has_topics):
    frame, body = request(version, has_topics)
    head = peek_fetch(frame, body, len(frame), version)
    assert (head.max_wait, head.min_bytes, head.has_topics) == (500, 2, has_topics)
    assert head.max_bytes == (1 << 20 if version >= 3 else 2**31 - 1)
    assert (head.session_id, head.session_epoch) == ((77, 8) if version >= 7 else (0, -1))
    with pytest.raises(Incomplete):
        peek_fetch(frame, body, body + 11, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_offsets_match_an_independent_decoder(version):
    frame, body = request(version, has_topics=True)
    head = peek_fetch(frame, body, len(frame), version)
    limited = bytearray(frame)
    wanted = {"max_wait_ms": (head.max_wait_offset, 0), "min_bytes": (head.min_bytes_offset, 0)}
    wanted["max_bytes"] = (head.max_bytes_offset, 1)
    for offset, value in wanted.values():
        if offset >= 0:
            limited[offset : offset + 4] = value.to_bytes(4, "big")
    decoded = codec.request_class(ApiKey.FETCH).decode(bytes(limited), version=version, header=True, framed=True)
    assert (decoded.max_wait_ms, decoded.min_bytes) == (0, 0)
    assert decoded.max_bytes == (1 if version >= 3 else 2**31 - 1)
    assert len(decoded.topics) == 1


@pytest.mark.parametrize("version", [7, 12, 18])
def test_request_gets_another_session_id(version):
    frame, body = request(version, has_topics=True)
    head = peek_fetch(frame, body, len(frame), version)
    longer = b"before" + frame
    shifted = peek_fetch(longer, 6 + body, len(longer), version)
    changed = with_limits(longer, 6, len(longer), shifted, max_wait=500, min_bytes=2, max_bytes=1 << 20, session_id=99)
    own, decoded = (
        codec.request_class(ApiKey.FETCH).decode(each, version=version, header=True, framed=True) for each in (frame, changed)
    )
    assert (head.session_id, decoded.session_id, decoded.session_epoch) == (77, 99, 8)
    assert (len(changed), decoded.isolation_level, decoded.topics) == (len(frame), own.isolation_level, own.topics)


def fields(head):
    offsets = (head.max_wait_offset, head.min_bytes_offset, head.max_bytes_offset)
    limits = (head.max_wait, head.min_bytes, head.max_bytes)
    return offsets, limits, (head.session_id, head.session_epoch, head.has_topics, head.renews)


@pytest.mark.parametrize("version", VERSIONS)
def test_truncated_head_is_incomplete(version):
    frame, body = request(version, has_topics=True)
    head = peek_fetch(frame, body, len(frame), version)
    cut = body
    while True:
        try:
            assert fields(peek_fetch(frame, body, cut, version)) == fields(head)
        except Incomplete:
            cut += 1
        else:
            break
    assert body + 12 < cut <= body + 29


@pytest.mark.parametrize("version", VERSIONS)
def test_empty_response_matches_an_independent_encoder(version):
    values = {"throttle_time_ms": 1234} if version >= 1 else {}
    if version >= 7:
        values["session_id"] = 99
    expected = codec.encode_response(ApiKey.FETCH, version, values, correlation_id=5)
    assert empty_response(version, 5, 99, 1234) == expected


@pytest.mark.parametrize("version", [7, 11, 12, 16, 18])
def test_empty_response_has_error_code(version):
    values = {"throttle_time_ms": 1234, "error_code": 71}
    expected = codec.encode_response(ApiKey.FETCH, version, values, correlation_id=5)
    assert empty_response(version, 5, 0, 1234, 71) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_top_level_error_is_read(version):
    frame = response_frame(ApiKey.FETCH, version, random.Random(3), **({"error_code": 71} if version >= 7 else {}))
    expected = 71 if version >= 7 else 0
    assert top_level_error(frame, 0, len(frame), version) == expected
    if version >= 12:
        assert top_level_error(with_header_tag(frame), 0, 30, version) == expected
    if version >= 7:
        with pytest.raises(Incomplete):
            top_level_error(frame, 0, 13, version)
        with pytest.raises(InvalidFrame):
            top_level_error(b"\x00\x00\x00\x05" + frame[4:9], 0, 9, version)


def first_batch_size(frame, version):
    return batch_size(frame, find_records(frame, 0, len(frame), version), len(frame))


@pytest.mark.parametrize("real", golden(ApiKey.FETCH), ids=str)
def test_first_batch_of_a_real_response_is_found(real):
    decoded = codec.decode_response(ApiKey.FETCH, real.version, real.frame)
    records = [p["records"] for topic in decoded["responses"] for p in topic["partitions"] if p["records"]]
    found = first_batch_size(real.frame, real.version)
    if real.client == "golden-slow":
        assert (records, found) == ([], 0)
        return
    assert found == 12 + int.from_bytes(records[0][8:12], "big") <= len(records[0])
    for cut in range(len(real.frame)):
        assert first_batch_size(real.frame[:cut], real.version) in (0, found)


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_without_records_are_skipped(version):
    batch = bytes(8) + (500).to_bytes(4, "big") + bytes(50)
    partition = {"partition_index": 1, "error_code": 0, "high_watermark": 1, "records": None}
    aborted = {"aborted_transactions": [{"producer_id": 1, "first_offset": 2}] * 3} if version >= 4 else {}
    partitions = [partition, partition | {"records": b""}, partition | aborted | {"records": batch}]
    topic = {"topic": "t"} if version < 13 else {}
    values = {"responses": [topic | {"partitions": [partition]}, topic | {"partitions": partitions}]}
    frame = codec.encode_response(ApiKey.FETCH, version, values)
    assert first_batch_size(frame, version) == 512


@pytest.mark.parametrize(("error", "message"), [(0, None), (0, "m" * 200), (30, None), (30, "no")])
@pytest.mark.parametrize("version", range(3))
def test_acquisition_lock_of_a_share_response_is_read(version, error, message):
    values = {"error_code": error, "error_message": message} | ({"acquisition_lock_timeout_ms": 30_000} if version >= 1 else {})
    frame = codec.encode_response(ApiKey.SHARE_FETCH, version, values | {"responses": []})
    locked = version >= 1 and error == 0
    assert acquisition_lock_ms(frame, 0, len(frame), version) == (30_000 if locked else 0)
    if locked:
        with pytest.raises(Incomplete):
            acquisition_lock_ms(frame, 0, 18, version)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("version", VERSIONS)
def test_idle_partitions_match_an_independent_encoder(version, seed):
    values = response_values(ApiKey.FETCH, version, random.Random(seed))
    frame = codec.encode_response(ApiKey.FETCH, version, values)
    for topic in values["responses"]:
        topic["partitions"] = [partition for partition in topic["partitions"] if len(partition["records"]) < 12]
    values["responses"] = [topic for topic in values["responses"] if topic["partitions"]]
    expected = codec.encode_response(ApiKey.FETCH, version, values) if values["responses"] else b""
    assert idle_partitions(frame, version) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_cut_response_has_no_idle_partitions(version):
    partitions = [{"partition_index": 1, "error_code": 0, "high_watermark": 1, "records": b""}]
    topic = {"topic": "t"} if version < 13 else {}
    frame = codec.encode_response(ApiKey.FETCH, version, {"responses": [topic | {"partitions": partitions}]})
    assert idle_partitions(frame, version) == frame
    for cut in range(4, len(frame)):
        assert idle_partitions((cut - 4).to_bytes(4, "big") + frame[4:cut], version) == b""


@given(st.binary(max_size=200), st.integers(0, 18))
def test_first_batch_of_random_bytes_is_a_size_or_zero(data, version):
    assert first_batch_size(data, version) >= 0
