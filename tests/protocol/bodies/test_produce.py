import random

import pytest

from protocol.api_keys import ApiKey
from protocol.bodies.produce import peek_acks, single_partition_throttle
from protocol.bodies.produced_topics import scan_whole
from protocol.errors import Incomplete, InvalidFrame
from protocol.headers import parse_request_header
from protocol.throttle import throttle_offset
from tests.protocol import codec
from tests.protocol.samples import response_frame

VERSIONS = range(14)


def request(version, acks, transactional_id=None):
    values = {"acks": acks, "timeout_ms": 1000} | ({"transactional_id": transactional_id} if version >= 3 else {})
    frame = codec.encode_request(ApiKey.PRODUCE, version, values, 1, "client")
    return frame, parse_request_header(frame, 4, len(frame)).body_offset


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("transactional_id", [None, "", "transaction", "x" * 200])
def test_acks_of_any_request_are_read(version, acks, transactional_id):
    frame, body = request(version, acks, transactional_id)
    found, after = peek_acks(frame, body, len(frame), version)
    assert found == acks
    for cut in range(body, after):
        with pytest.raises(Incomplete):
            peek_acks(frame, body, cut, version)
    assert peek_acks(frame, body, after, version) == (acks, after)


@pytest.mark.parametrize(("version", "body"), [(3, b"\xff\xfe\x00\x00"), (9, b"\xff\xff\xff\xff\xff"), (9, b"\x80\x80\x03")])
def test_impossible_transactional_id_is_invalid(version, body):
    with pytest.raises(InvalidFrame):
        peek_acks(body, 0, len(body), version)


@pytest.mark.parametrize(("version", "body"), [(3, b"\0\x09t"), (5, b"\xff\xff\0"), (9, b"\x0bt"), (13, b"\1\0")])
def test_whole_request_that_ends_in_its_head_is_invalid(version, body):
    with pytest.raises(InvalidFrame):
        scan_whole(version, body, 0)


@pytest.mark.parametrize("at", [12, 52])
def test_shortcut_refuses_a_negative_length(at):
    """The topic's name and the error message of version 8: only -1 means null, as for a frame in chunks."""
    frame = bytearray(response(8, [partition(8)], name=""))
    assert single_partition_throttle(frame, 0, len(frame), 8) > 0
    frame[at : at + 2] = b"\xff\xa0"
    assert single_partition_throttle(frame, 0, len(frame), 8) == -1
    with pytest.raises(InvalidFrame):
        throttle_offset(ApiKey.PRODUCE, 8, frame, 0, len(frame))


def partition(version, **values):
    return {"index": 3, "error_code": 0, "base_offset": 1 << 40} | values


def response(version, partitions, topics=1, name="topic"):
    topic = {"name": name} if version < 13 else {}
    responses = [topic | {"partition_responses": partitions}] * topics
    return codec.encode_response(ApiKey.PRODUCE, version, {"responses": responses, "throttle_time_ms": 88})


@pytest.mark.parametrize("version", range(1, 14))
@pytest.mark.parametrize("name", ["", "t", "n" * 126, "n" * 127, "n" * 249])
def test_shortcut_finds_the_throttle_time_or_nothing(version, name):
    frame = response(version, [partition(version)], name=name)
    found = single_partition_throttle(frame, 0, len(frame), version)
    assert int.from_bytes(frame[found : found + 4], "big") == 88 or (found == -1 and len(name) > 126)
    for cut in range(len(frame)):
        assert single_partition_throttle(frame[:cut], 0, cut, version) in (found, -1)


@pytest.mark.parametrize("version", range(1, 14))
def test_other_shapes_have_no_shortcut(version):
    two = [partition(version), partition(version)]
    frames = [response(version, two), response(version, [partition(version)], topics=2), response(version, [])]
    if version >= 8:
        frames.append(response(version, [partition(version, error_message="why")]))
        frames.append(response(version, [partition(version, record_errors=[{"batch_index": 1}])]))
    if version >= 10:
        leader = {"leader_id": 4, "leader_epoch": 5}
        frames.append(response(version, [partition(version, error_code=6, current_leader=leader)]))
    for frame in frames:
        assert single_partition_throttle(frame, 0, len(frame), version) == -1
        offset = throttle_offset(ApiKey.PRODUCE, version, frame, 0, len(frame))
        assert int.from_bytes(frame[offset : offset + 4], "big") == 88


@pytest.mark.parametrize("version", range(1, 14))
@pytest.mark.parametrize("seed", range(20))
def test_shortcut_agrees_with_the_full_walk(version, seed):
    frame = response_frame(ApiKey.PRODUCE, version, random.Random(seed), throttle_time_ms=88)
    assert single_partition_throttle(frame, 0, len(frame), version) in (
        -1,
        throttle_offset(ApiKey.PRODUCE, version, frame, 0, len(frame)),
    )
