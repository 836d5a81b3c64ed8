import random
import uuid

import pytest

from protocol.api_keys import ApiKey
from protocol.bodies import topic_metadata
from protocol.bodies.topic_lists import NO_ID
from protocol.cursor import Reader
from protocol.errors import InvalidFrame
from tests.protocol import codec
from tests.protocol.golden import golden
from tests.protocol.samples import response_frame, with_header_tag, with_length

GOLDEN = golden(ApiKey.METADATA)
FRAMES = [(g.version, g.frame) for g in GOLDEN]
FRAMES += [(version, response_frame(ApiKey.METADATA, version, random.Random(version))) for version in range(14)]


@pytest.mark.parametrize(("version", "frame"), FRAMES)
def test_topics_are_read_with_their_partitions(version, frame):
    expected = [
        (
            topic["name"],
            topic["topic_id"].bytes if version >= 10 else NO_ID,
            topic["error_code"],
            len(topic["partitions"]),
            version >= 1 and topic["is_internal"],
            (),
        )
        for topic in codec.decode_response(ApiKey.METADATA, version, frame)["topics"]
    ]
    assert topic_metadata.read_topics(version, frame) == expected
    if version >= 9:
        assert topic_metadata.read_topics(version, with_header_tag(frame)) == expected


@pytest.mark.parametrize(("version", "frame"), FRAMES)
def test_leaders_are_read_of_wanted_topics_only(version, frame):
    expected = codec.decode_response(ApiKey.METADATA, version, frame)
    wanted = [topic["name"] for topic in expected["topics"]][1:]
    reader = Reader.of_whole_response(frame, header_version=int(version >= 9))
    answer = topic_metadata.read_answer(version, reader, wanted)
    assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [
        (broker["node_id"], broker["host"], broker["port"]) for broker in expected["brokers"]
    ]
    for found, topic in zip(answer.topics, expected["topics"], strict=True):
        leaders = {each["partition_index"]: each["leader_id"] for each in topic["partitions"]}
        assert found.leaders == (tuple(leaders[index] for index in sorted(leaders)) if found.name in wanted else ())


@pytest.mark.parametrize("client_id", ["etl", "", "ä"])
def test_lookup_by_name_is_encoded(client_id):
    values = {"topics": [{"name": "one"}, {"name": "ä" * 99}], "allow_auto_topic_creation": False}
    expected = codec.encode_request(ApiKey.METADATA, 4, values, 7, client_id)
    assert topic_metadata.ask_by_name(7, client_id, ["ä" * 99, "one"]) == [expected]


def test_lookup_by_id_is_encoded():
    ids = [uuid.UUID(int=number) for number in (3, 2**127)]
    topics = [{"name": None, "topic_id": each} for each in ids]
    values = {"topics": topics, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    expected = codec.encode_request(ApiKey.METADATA, 12, values, 7, "etl")
    assert topic_metadata.ask_by_id(7, "etl", [each.bytes for each in reversed(ids)]) == [expected]


def test_lookup_without_client_id_is_encoded():
    (request,) = topic_metadata.ask_by_name(7, None, ["a"])
    assert request[12:14] == b"\xff\xff"


def test_lookup_is_split_into_requests():
    most = topic_metadata.TOPICS_PER_REQUEST
    names = [f"{number:05}" for number in range(most + 1)]
    ids = [name.encode().rjust(16) for name in names]
    for ask, topics in ((topic_metadata.ask_by_name, names), (topic_metadata.ask_by_id, ids)):
        assert len(ask(1, "etl", topics)) == 2
        assert ask(1, "etl", topics) == [*ask(1, "etl", topics[:most]), *ask(1, "etl", topics[most:])]
        assert ask(1, "etl", []) == []


@pytest.mark.parametrize("real", GOLDEN, ids=str)
def test_truncated_frame_is_invalid_or_read(real):
    whole = topic_metadata.read_topics(real.version, real.frame)
    for cut in range(len(real.frame)):
        with pytest.raises(InvalidFrame):
            topic_metadata.read_topics(real.version, real.frame[:cut])
        try:
            assert topic_metadata.read_topics(real.version, with_length(real.frame[4:cut])) == whole
        except InvalidFrame:
            continue
