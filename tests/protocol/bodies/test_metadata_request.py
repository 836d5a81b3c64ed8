"""A client's Metadata request, in all versions, against an independent codec."""

import uuid

import pytest

from protocol.api_keys import ApiKey
from protocol.bodies import metadata_request
from protocol.bodies.metadata_request import MAX_TOPICS, read_request, without_creation
from protocol.cursor import MAX_ELEMENTS
from protocol.errors import InvalidFrame
from protocol.headers import parse_request_header
from tests.protocol import codec

VERSIONS = range(14)
SINCE = metadata_request.CREATION_SINCE


def frame_of(version, names, *, creates=True):
    """A request for topics by name, or for all topics (None)."""
    topics = None if names is None else [{"name": name} for name in names]
    values = {"topics": topics, "allow_auto_topic_creation": creates}
    return codec.encode_request(ApiKey.METADATA, version, values, 7, "etl")


def read(frame):
    header = parse_request_header(frame, 4, len(frame))
    return read_request(header.api_version, frame, header.body_offset)


@pytest.mark.parametrize("version", VERSIONS)
def test_names_and_permission_are_read(version):
    for creates in (True, False):
        found = read(frame_of(version, ["b", "a", "ä" * 99, "b"], creates=creates))
        assert found.names == ["b", "a", "ä" * 99]
        assert found.creates == (creates or version < SINCE)
        assert (found.permission < 0) == (version < SINCE)


@pytest.mark.parametrize("version", VERSIONS)
def test_request_without_topics_creates_none(version):
    assert not read(frame_of(version, [])).creates
    if version >= 1:
        assert not read(frame_of(version, None)).creates


@pytest.mark.parametrize("version", range(12, 14))
def test_topics_by_id_have_no_name(version):
    topics = [{"name": None, "topic_id": uuid.UUID(int=5)}, {"name": "a", "topic_id": uuid.UUID(int=0)}]
    frame = codec.encode_request(ApiKey.METADATA, version, {"topics": topics, "allow_auto_topic_creation": True}, 7, "etl")
    assert read(frame).names == ["a"]


@pytest.mark.parametrize("version", range(SINCE, 14))
def test_permission_is_taken_away(version):
    frame = frame_of(version, ["a", "b"])
    assert without_creation(frame, read(frame)) == frame_of(version, ["a", "b"], creates=False)


@pytest.mark.parametrize("version", [1, 8, 12])
def test_names_of_many_topics_are_not_decoded(version):
    assert len(read(frame_of(version, [str(n) for n in range(MAX_ELEMENTS)])).names) == MAX_ELEMENTS
    found = read(frame_of(version, ["a"] * (MAX_ELEMENTS + 1), creates=False))
    assert (found.names, found.creates) == (None, version < SINCE)


@pytest.mark.parametrize("version", [1, 9, 12])
def test_number_of_topics_is_limited(version):
    with pytest.raises(InvalidFrame, match="send several requests"):
        read(frame_of(version, [""] * (MAX_TOPICS + 1)))


@pytest.mark.parametrize("version", VERSIONS)
def test_cut_request_is_invalid(version):
    frame = frame_of(version, ["a", "b"])
    header = parse_request_header(frame, 4, len(frame))
    whole = read(frame)
    end = whole.permission + 1 if whole.permission >= 0 else len(frame)
    for cut in range(header.body_offset, end):
        with pytest.raises(InvalidFrame):
            read_request(version, (cut - 4).to_bytes(4, "big") + frame[4:cut], header.body_offset)
