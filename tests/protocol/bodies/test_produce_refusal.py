"""Refused Produce requests: their partitions and the answer, against an independent codec."""

from uuid import UUID

import pytest

from protocol.api_keys import ApiKey
from protocol.bodies.produce import MAX_PRODUCE_ELEMENTS, only_topic, peek_acks, refuse
from protocol.bodies.produced_topics import indexes_of, scan_whole
from protocol.errors import Incomplete, InvalidFrame
from protocol.headers import parse_request_header
from tests.protocol import codec

VERSIONS = range(14)
IDS = {"a": bytes(range(16)), "other": bytes(range(16, 32))}


def topic_fields(name, version):
    return {"name": name} if version < 13 else {"topic_id": UUID(bytes=IDS[name])}


def request(version, topics):
    data = [
        topic_fields(name, version)
        | {"partition_data": [{"index": index, "records": b"r" * size} for index, size in partitions]}
        for name, partitions in topics
    ]
    values = {"acks": -1, "timeout_ms": 1, "topic_data": data}
    return codec.encode_request(ApiKey.PRODUCE, version, values, 7, "etl")


def read_partitions(frame, body_offset, version):
    return indexes_of(scan_whole(version, frame, body_offset).topics)


def named(name, version):
    return IDS[name] if version >= 13 else name.encode()


@pytest.mark.parametrize("version", VERSIONS)
def test_all_partitions_are_found_and_refused(version):
    frame = request(version, [("a", [(0, 10), (5, 300)]), ("other", [(1, 0)])])
    header = parse_request_header(frame, 4, len(frame))
    found = read_partitions(frame, header.body_offset, version)
    assert found == [(named("a", version), [0, 5]), (named("other", version), [1])]

    def answer(index):
        fields = {"index": index, "error_code": 19, "base_offset": -1}
        return fields | ({"error_message": "no room"} if version >= 8 else {})

    values = {
        "responses": [
            topic_fields("a", version) | {"partition_responses": [answer(0), answer(5)]},
            topic_fields("other", version) | {"partition_responses": [answer(1)]},
        ]
    }
    assert refuse(version, 7, found, 19, "no room") == codec.encode_response(ApiKey.PRODUCE, version, values, 7)


@pytest.mark.parametrize("version", [8, 9])
def test_long_refusal_has_message_once(version):
    topics = [(b"a", [0, 1]), (b"other", list(range(3_000)))]
    answer = codec.decode_response(ApiKey.PRODUCE, version, refuse(version, 7, topics, 19, "m" * 100))
    results = [part for topic in answer["responses"] for part in topic["partition_responses"]]
    assert {part["error_code"] for part in results} == {19}
    assert [part["error_message"] for part in results] == ["m" * 100] + [None] * 3_001


@pytest.mark.parametrize("version", [3, 9, 13])
def test_number_of_refused_partitions_is_bounded(version):
    most = MAX_PRODUCE_ELEMENTS - 1  # and their topic
    frame = request(version, [("a", [(index, 0) for index in range(most)])])
    header = parse_request_header(frame, 4, len(frame))
    assert len(read_partitions(frame, header.body_offset, version)[0][1]) == most
    frame = request(version, [("a", [(index, 0) for index in range(most + 1)])])
    header = parse_request_header(frame, 4, len(frame))
    with pytest.raises(InvalidFrame, match="may have only 19999 more"):
        read_partitions(frame, header.body_offset, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_only_topic_is_found_if_it_is_the_only_one(version):
    one = request(version, [("a", [(0, 10), (1, 10)])])
    two = request(version, [("a", [(0, 10)]), ("other", [(0, 10)])])
    for frame, expected in ((one, named("a", version)), (two, b"")):
        header = parse_request_header(frame, 4, len(frame))
        _, acks_end = peek_acks(frame, header.body_offset, len(frame), version)
        assert only_topic(frame, acks_end, len(frame), len(frame), version) == expected
        for seen in range(acks_end, len(frame)):
            try:
                assert only_topic(frame, acks_end, seen, len(frame), version) == expected
            except Incomplete:
                assert seen < acks_end + 4 + 5 + 16


@pytest.mark.parametrize("version", VERSIONS)
def test_truncated_request_is_invalid(version):
    frame = request(version, [("a", [(0, 10), (5, 300)])])
    header = parse_request_header(frame, 4, len(frame))
    for end in range(header.body_offset, len(frame) - (version >= 9)):
        with pytest.raises(InvalidFrame):
            read_partitions(frame[:end], header.body_offset, version)
