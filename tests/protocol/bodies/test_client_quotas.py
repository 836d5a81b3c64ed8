import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.steps import at_once
from protocol.api_keys import ApiKey
from protocol.bodies.client_quotas import (
    AlterEntry,
    AlterRequest,
    AlterResponse,
    AlterResult,
    Component,
    DescribedEntity,
    DescribeRequest,
    DescribeResponse,
    EntityPart,
    Op,
    describe_response_in_steps,
    read_alter_request,
    read_alter_response,
    read_describe_request,
    read_describe_response,
    write_alter_request,
    write_alter_response,
)
from protocol.errors import InvalidFrame
from protocol.headers import parse_request_header
from tests.protocol import codec
from tests.protocol.golden import golden
from tests.protocol.samples import response_frame, with_header_tag, with_length

DESCRIBE, ALTER = ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS
VERSIONS = (0, 1)

names = st.text(st.characters(codec="utf-8"), max_size=200)
nullable = st.none() | names
numbers = st.floats(allow_nan=False)
ops = st.builds(Op, names, st.none() | numbers)
entities = st.lists(st.builds(EntityPart, names, nullable), max_size=3).map(tuple)
entries = st.lists(st.builds(AlterEntry, entities, st.lists(ops, max_size=3).map(tuple)), max_size=3).map(tuple)
components = st.lists(st.builds(Component, names, st.integers(-128, 127), nullable), max_size=3).map(tuple)
alter_requests = st.builds(AlterRequest, entries, st.booleans())
int32s, int16s = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**15), 2**15 - 1)
results = st.lists(st.builds(AlterResult, int16s, nullable, entities), max_size=3).map(tuple)
values = st.lists(st.tuples(names, numbers), max_size=3).map(tuple)
described = st.none() | st.lists(st.builds(DescribedEntity, entities, values), max_size=3).map(tuple)


def read_whole(version, frame):
    response = read_describe_response(version, frame)
    return response._replace(entries=None if response.entries is None else tuple(response.entries))


def write_describe_response(version, correlation_id, response):
    return at_once(describe_response_in_steps(version, correlation_id, response))


def parts(entity):
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity]


def alter_values(request):
    return {
        "entries": [
            {
                "entity": parts(entity),
                "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops],
            }
            for entity, ops in request.entries
        ],
        "validate_only": request.validate_only,
    }


def header_of(frame):
    return parse_request_header(frame, 4, len(frame), len(frame))


@pytest.mark.parametrize("version", VERSIONS)
@given(alter_requests)
def test_alter_request_matches_kafka_python(version, request_):
    frame = codec.encode_request(ALTER, version, alter_values(request_), 7, "admin")
    header = header_of(frame)
    assert read_alter_request(frame, header) == request_
    assert write_alter_request(frame, header, request_) == frame


@pytest.mark.parametrize("version", VERSIONS)
@given(components, st.booleans())
def test_describe_request_is_read(version, filters, strict):
    body = [{"entity_type": kind, "match_type": how, "match": match} for kind, how, match in filters]
    frame = codec.encode_request(DESCRIBE, version, {"components": body, "strict": strict}, 7, "admin")
    assert read_describe_request(frame, header_of(frame)) == DescribeRequest(filters, strict)


@pytest.mark.parametrize("version", VERSIONS)
@given(int32s, results)
def test_alter_response_matches_kafka_python(version, throttle, given_results):
    rows = [{"error_code": code, "error_message": text, "entity": parts(entity)} for code, text, entity in given_results]
    frame = codec.encode_response(ALTER, version, {"throttle_time_ms": throttle, "entries": rows})
    response = AlterResponse(throttle, given_results)
    assert read_alter_response(version, frame) == response
    assert write_alter_response(version, 7, response) == frame


@pytest.mark.parametrize("version", VERSIONS)
@given(int32s, int16s, nullable, described)
def test_describe_response_matches_kafka_python(version, throttle, error, text, found):
    rows = None
    if found is not None:
        rows = [{"entity": parts(e), "values": [{"key": k, "value": v} for k, v in pairs]} for e, pairs in found]
    body = {"throttle_time_ms": throttle, "error_code": error, "error_message": text, "entries": rows}
    frame = codec.encode_response(DESCRIBE, version, body)
    response = DescribeResponse(throttle, error, text, found)
    assert read_whole(version, frame) == response
    assert write_describe_response(version, 7, response) == frame


def answers():
    for key, read, write in (
        (DESCRIBE, read_whole, write_describe_response),
        (ALTER, read_alter_response, write_alter_response),
    ):
        for real in golden(key):
            yield pytest.param(read, write, real.version, real.frame, id=str(real))
        for version in VERSIONS:
            frame = response_frame(key, version, random.Random(version))
            yield pytest.param(read, write, version, frame, id=f"{key.name}-v{version}-made-up")


@pytest.mark.parametrize(("read", "write", "version", "frame"), list(answers()))
def test_truncated_or_extended_response_is_invalid(read, write, version, frame):
    correlation_id = int.from_bytes(frame[4:8], "big", signed=True)
    assert write(version, correlation_id, read(version, frame)) == frame
    for cut in range(8, len(frame)):
        with pytest.raises(InvalidFrame):
            read(version, frame[:cut])
        with pytest.raises(InvalidFrame):
            read(version, with_length(frame[4:cut]))
    with pytest.raises(InvalidFrame):
        read(version, with_length(frame[4:] + b"\0"))
    if version >= 1:
        assert read(version, with_header_tag(frame)) == read(version, frame)


@pytest.mark.parametrize("version", VERSIONS)
def test_truncated_or_extended_request_is_invalid(version):
    entry = AlterEntry((EntityPart("user", "alice"), EntityPart("client-id", None)), (Op("k", 1.5), Op("l", None)))
    frame = codec.encode_request(ALTER, version, alter_values(AlterRequest((entry, entry), True)), 7, "admin")
    header = header_of(frame)
    for cut in range(header.body_offset, len(frame)):
        with pytest.raises(InvalidFrame):
            read_alter_request(frame[:cut], header)
    with pytest.raises(InvalidFrame):
        read_alter_request(frame + b"\0", header)


def test_null_entity_type_is_invalid():
    body = {"components": [{"entity_type": "user", "match_type": 2, "match": None}], "strict": False}
    frame = codec.encode_request(DESCRIBE, 0, body, 7, "admin")
    null = frame.replace(b"\0\4user", b"\xff\xff")
    with pytest.raises(InvalidFrame, match="null"):
        read_describe_request(null, header_of(null))


@given(st.binary(max_size=200), st.sampled_from(VERSIONS))
def test_random_bytes_are_invalid_or_read(data, version):
    for read in (read_alter_response, read_whole):
        with suppress(InvalidFrame):
            read(version, with_length(b"\0\0\0\7" + data))
