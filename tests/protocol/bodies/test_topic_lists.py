"""CreateTopics, DeleteTopics and CreatePartitions in every version: topics read, removed and refused, the rest unchanged."""

import random
import uuid

import pytest

from protocol.api_keys import APIS, ApiKey
from protocol.bodies import topic_lists
from protocol.bodies.topic_lists import NO_ID, TOPICS_APIS
from protocol.error_codes import ErrorCode
from protocol.errors import InvalidFrame
from protocol.headers import parse_request_header
from tests.protocol import codec
from tests.protocol.golden import golden
from tests.protocol.samples import response_frame, with_header_tag, with_length

VERSIONS = [(ApiKey(key), version) for key in TOPICS_APIS for version in range(APIS[key].max_version + 1)]
NAMES = ["payments", "ä" * 100, "logs"]
IDS = [uuid.UUID(int=number + 1) for number in range(3)]


def request_values(key, version, names=NAMES):
    """Requests of every shape: counts, manual assignments, configs."""
    if key == ApiKey.CREATE_TOPICS:
        topics = [
            {"name": name, "num_partitions": 3 * index - 1, "replication_factor": index, "assignments": [], "configs": []}
            for index, name in enumerate(names)
        ]
        topics[1]["assignments"] = [{"partition_index": n, "broker_ids": [1, 2]} for n in range(4)]
        topics[0]["configs"] = [{"name": "retention.ms", "value": "5"}, {"name": "cleanup.policy", "value": None}]
        return {"topics": topics, "timeout_ms": 1234} | ({"validate_only": True} if version >= 1 else {})
    if key == ApiKey.CREATE_PARTITIONS:
        topics = [{"name": name, "count": 10 * (index + 1), "assignments": None} for index, name in enumerate(names)]
        topics[1]["assignments"] = [{"broker_ids": [1]}, {"broker_ids": [2, 3]}]
        return {"topics": topics, "timeout_ms": 1234, "validate_only": True}
    if version >= 6:
        return {"topics": [{"name": name, "topic_id": uuid.UUID(int=0)} for name in names], "timeout_ms": 1234}
    return {"topic_names": list(names), "timeout_ms": 1234}


def topics_field(key, version):
    return "topic_names" if key == ApiKey.DELETE_TOPICS and version < 6 else "topics"


def results_field(key):
    return {ApiKey.CREATE_TOPICS: "topics", ApiKey.DELETE_TOPICS: "responses", ApiKey.CREATE_PARTITIONS: "results"}[key]


def made_up_request(key, version, **values):
    return codec.encode_request(key, version, request_values(key, version) | values, 7, "etl")


def read(key, version, frame):
    header = parse_request_header(frame, 4, len(frame))
    return topic_lists.read_request(key, version, frame, header.body_offset)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_topics_of_a_request_are_read(key, version):
    frame = made_up_request(key, version)
    request = read(key, version, frame)
    assert [topic.name for topic in request.topics] == NAMES
    assert {topic.topic_id for topic in request.topics} == {NO_ID}
    expected = {
        ApiKey.CREATE_TOPICS: [(-1, -1, 0), (2, 4, 1), (5, -1, 2)],
        ApiKey.CREATE_PARTITIONS: [(10, -1, -1), (20, 2, -1), (30, -1, -1)],
        ApiKey.DELETE_TOPICS: [(0, -1, -1)] * 3,
    }[key]
    assert [(t.partitions, t.assignments, t.replication_factor) for t in request.topics] == expected


def test_topics_to_delete_may_be_named_by_ids():
    frame = made_up_request(ApiKey.DELETE_TOPICS, 6, topics=[{"name": None, "topic_id": each} for each in IDS])
    request = read(ApiKey.DELETE_TOPICS, 6, frame)
    assert [(topic.name, topic.topic_id) for topic in request.topics] == [(None, each.bytes) for each in IDS]


@pytest.mark.parametrize(("key", "version"), VERSIONS)
@pytest.mark.parametrize("kept", [[], [1], [0, 2], [0, 1, 2]], ids=str)
def test_kept_topics_and_other_fields_stay(key, version, kept):
    frame = made_up_request(key, version)
    request = read(key, version, frame)
    cut = topic_lists.keep(key, version, frame, request, [request.topics[index] for index in kept])
    values = request_values(key, version)
    field = topics_field(key, version)
    assert cut == codec.encode_request(key, version, values | {field: [values[field][index] for index in kept]}, 7, "etl")


@pytest.mark.parametrize(("key", "version"), [each for each in VERSIONS if each[1] >= APIS[each[0]].flexible_since])
def test_unknown_tagged_fields_survive_in_a_request(key, version):
    """In the header, in a topic that stays, and at the end."""
    frame = made_up_request(key, version)
    header = parse_request_header(frame, 4, len(frame))
    request = read(key, version, frame)
    last = request.topics[-1].end
    in_topic = topics_field(key, version) == "topics"
    cut = last - 1 if in_topic else last
    tagged = (
        frame[4 : header.body_offset - 1]
        + b"\x01\x63\x03abc"
        + frame[header.body_offset : cut]
        + (b"\x01\x07\x02hi" if in_topic else b"")
        + frame[last:-1]
        + b"\x01\x2a\x01!"
    )
    frame = with_length(tagged)
    request = read(key, version, frame)
    assert [topic.name for topic in request.topics] == NAMES
    assert topic_lists.keep(key, version, frame, request, request.topics) == frame
    shorter = topic_lists.keep(key, version, frame, request, request.topics[2:])
    assert b"\x01\x63\x03abc" in shorter
    assert (b"\x01\x07\x02hi" in shorter) is in_topic
    assert shorter.endswith(b"\x01\x2a\x01!")


def result(key, version, name, error):
    values = {"name": name, "error_code": error, "topic_id": uuid.UUID(int=9), "error_message": f"{error}!"}
    values |= {"num_partitions": 5, "replication_factor": 3, "topic_config_error_code": 29}
    values["configs"] = [{"name": "c", "value": None, "read_only": True, "config_source": 5, "is_sensitive": False}]
    known = codec.response_class(key).fields[results_field(key)].data_class.fields
    return {name: value for name, value in values.items() if name in known and known[name].for_version_q(version)}


def made_up_response(key, version):
    values = {results_field(key): [result(key, version, name, error) for error, name in enumerate(NAMES)]}
    if version >= APIS[key].throttle_since:
        values["throttle_time_ms"] = 77
    return codec.encode_response(key, version, values)


RESPONSES = [(key, version, made_up_response(key, version)) for key, version in VERSIONS]
RESPONSES += [(ApiKey(g.api_key), g.version, g.frame) for key in TOPICS_APIS for g in golden(key)]
RESPONSES += [(key, version, response_frame(key, version, random.Random(version))) for key, version in VERSIONS]


@pytest.mark.parametrize(("key", "version", "frame"), RESPONSES)
def test_results_of_a_response_survive_round_trip(key, version, frame):
    response = topic_lists.read_response(key, version, frame)
    expected = codec.decode_response(key, version, frame)[results_field(key)]
    assert [(each.name, each.error) for each in response.results] == [(e["name"], e["error_code"]) for e in expected]
    assert [each.partitions for each in response.results] == [e.get("num_partitions", -1) for e in expected]
    if key != ApiKey.CREATE_PARTITIONS and version >= APIS[key].max_version:
        assert [each.topic_id for each in response.results] == [
            e["topic_id"].bytes if e["topic_id"] else NO_ID for e in expected
        ]
    elements = [frame[each.start : each.end] for each in response.results]
    assert topic_lists.answer_with(key, version, frame, response.start, response.end, elements) == frame


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_refused_topic_has_code_and_no_message(key, version):
    topic = read(key, version, made_up_request(key, version)).topics[1]
    if key == ApiKey.DELETE_TOPICS:
        topic = topic._replace(topic_id=IDS[0].bytes)
    refused = topic_lists.refuse(key, version, topic, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    frame = topic_lists.make_answer(key, version, 7, [refused, refused])
    nothing = {"error_message": None, "num_partitions": -1, "replication_factor": -1, "configs": []}
    topic_id = IDS[0] if key == ApiKey.DELETE_TOPICS else uuid.UUID(int=0)
    expected = result(key, version, NAMES[1], ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    expected |= {field: value for field, value in (nothing | {"topic_id": topic_id}).items() if field in expected}
    if "topic_config_error_code" in expected:
        expected["topic_config_error_code"] = 0
    values = {results_field(key): [expected, expected]}
    if version >= APIS[key].throttle_since:
        values["throttle_time_ms"] = 0
    assert frame == codec.encode_response(key, version, values, 7)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_refused_topics_are_merged_into_a_response(key, version):
    frame = made_up_response(key, version)
    flexible = version >= APIS[key].flexible_since
    if flexible:
        frame = with_header_tag(frame)
        frame = with_length(frame[4:-1] + b"\x01\x2a\x01!")
    response = topic_lists.read_response(key, version, frame)
    topic = read(key, version, made_up_request(key, version)).topics[0]
    refused = topic_lists.refuse(key, version, topic, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    elements = [frame[each.start : each.end] for each in response.results]
    merged = topic_lists.answer_with(key, version, frame, response.start, response.end, [elements[0], refused, *elements[1:]])
    assert [each.error for each in topic_lists.read_response(key, version, merged).results] == [0, 89, 1, 2]
    assert len(merged) == len(frame) + len(refused)
    if flexible:
        assert b"\x01\x63\x03abc" in merged[:20]
        assert merged.endswith(b"\x01\x2a\x01!")


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_truncated_frame_is_invalid_or_read(key, version):
    frame = made_up_request(key, version)
    for cut in range(parse_request_header(frame, 4, len(frame)).body_offset, len(frame)):
        with pytest.raises(InvalidFrame):
            read(key, version, with_length(frame[4:cut]))
    frame = made_up_response(key, version)
    response = topic_lists.read_response(key, version, frame)
    for cut in range(response.end):
        with pytest.raises(InvalidFrame):
            topic_lists.read_response(key, version, frame[:cut])
        with pytest.raises(InvalidFrame):
            topic_lists.read_response(key, version, with_length(frame[4:cut]))


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_bytes_behind_a_request_change_nothing(key, version):
    """Kafka accepts them."""
    frame = made_up_request(key, version)
    assert read(key, version, with_length(frame[4:] + b"zz")) == read(key, version, frame)


def one_topic(key, version):
    """A request of one topic with an assignment and a config, where there are such."""
    if key == ApiKey.CREATE_TOPICS:
        configs = [{"name": "retention.ms", "value": "5"}]
        topic = {"num_partitions": -1, "replication_factor": -1, "configs": configs}
        topics = [topic | {"name": NAMES[0], "assignments": [{"partition_index": 0, "broker_ids": [1]}]}]
    elif key == ApiKey.CREATE_PARTITIONS:
        topics = [{"name": NAMES[0], "count": 9, "assignments": [{"broker_ids": [1]}]}]
    else:
        topics = request_values(key, version, NAMES[:1])[topics_field(key, version)]
    return made_up_request(key, version, **{topics_field(key, version): topics})


def lengths(key, version):
    """The offsets in the body and the sizes of all lengths that may not be null, in `one_topic`."""
    flexible = version >= APIS[key].flexible_since
    array, string = (1, 1) if flexible else (4, 2)
    name = array
    behind = name + string + len(NAMES[0])
    found = [(0, array)]
    if key != ApiKey.DELETE_TOPICS or version < 6:
        found.append((name, string))
    if key == ApiKey.CREATE_TOPICS:
        assignments = behind + 4 + 2
        brokers = assignments + array + 4
        configs = brokers + array + 4 + flexible
        found += [(assignments, array), (brokers, array), (configs, array), (configs + array, string)]
    elif key == ApiKey.CREATE_PARTITIONS:
        found.append((behind + 4 + array, array))
    return found


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_null_that_kafka_refuses_is_invalid(key, version):
    frame = one_topic(key, version)
    body = parse_request_header(frame, 4, len(frame)).body_offset
    assert [topic.name for topic in read(key, version, frame).topics] == NAMES[:1]
    for at, size in lengths(key, version):
        null = b"\0" if size == 1 else b"\xff" * size
        with pytest.raises(InvalidFrame, match=r"is null|without a name"):
            read(key, version, with_length(frame[4 : body + at] + null + frame[body + at + size :]))


def test_topic_without_name_and_id_is_invalid():
    frame = made_up_request(ApiKey.DELETE_TOPICS, 4)
    at = read(ApiKey.DELETE_TOPICS, 4, frame).topics[0].start
    with pytest.raises(InvalidFrame, match="without a name"):
        read(ApiKey.DELETE_TOPICS, 4, with_length(frame[4:at] + b"\0" + frame[at + 1 + len(NAMES[0]) :]))
