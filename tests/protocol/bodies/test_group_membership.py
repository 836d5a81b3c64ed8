"""The requests of a group's members and the coordinator's answers, in every version."""

from uuid import UUID

import pytest

from protocol.api_keys import APIS, ApiKey
from protocol.bodies.group_membership import MemberAnswer, commits_as_member, read_answer, session_timeout_ms
from protocol.errors import Incomplete
from protocol.headers import parse_request_header
from tests.protocol import codec

VERSIONS = [
    (api, version)
    for api in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT,
                ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_HEARTBEAT)
    for version in range(APIS[api].max_version + 1)
]  # fmt: skip
NAMED = {"error_message": "no", "member_id": "m" * 200, "heartbeat_interval_ms": 5_000}


@pytest.mark.parametrize("version", range(APIS[ApiKey.JOIN_GROUP].max_version + 1))
def test_session_timeout_is_found(version):
    values = {"group_id": "g" * 200, "session_timeout_ms": 45_000, "member_id": "m"}
    frame = codec.encode_request(ApiKey.JOIN_GROUP, version, values, 7, "app")
    header = parse_request_header(frame, 4, len(frame), len(frame))
    assert session_timeout_ms(version, frame, header.body_offset, len(frame), len(frame)) == 45_000
    with pytest.raises(Incomplete):
        session_timeout_ms(version, frame, header.body_offset, header.body_offset + 150, len(frame))


COMMITS = range(APIS[ApiKey.OFFSET_COMMIT].max_version + 1)


@pytest.mark.parametrize(
    ("generation", "member_id", "named"),
    [(0, "m", True), (7, "m" * 200, True), (-1, "m", False), (7, "", False), (-1, "", False)],
)
@pytest.mark.parametrize("version", COMMITS)
def test_commit_tells_if_it_names_a_member(version, generation, member_id, named):
    values = {"group_id": "g" * 200, "topics": []}
    if version >= 1:
        values |= {"generation_id_or_member_epoch": generation, "member_id": member_id}
    frame = codec.encode_request(ApiKey.OFFSET_COMMIT, version, values, 7, "app")
    header = parse_request_header(frame, 4, len(frame), len(frame))
    assert commits_as_member(version, frame, header.body_offset, len(frame), len(frame)) is (named and version >= 1)


def test_commit_waits_for_its_member():
    frame = codec.encode_request(ApiKey.OFFSET_COMMIT, 8, {"group_id": "g" * 200, "topics": []}, 7, "app")
    header = parse_request_header(frame, 4, len(frame), len(frame))
    with pytest.raises(Incomplete):
        commits_as_member(8, frame, header.body_offset, header.body_offset + 150, len(frame))


@pytest.mark.parametrize(
    ("errors", "kept"),
    [([[0]], True), ([[12, 0]], True), ([[3], [0, 0]], True), ([], False), ([[]], False), ([[3]], False), ([[25, 25]], False)],
)
@pytest.mark.parametrize("version", COMMITS)
def test_commit_with_a_taken_partition_is_a_members(version, errors, kept):
    topic = {"topic_id": UUID(int=1)} if version >= 10 else {"name": "t" * 200}
    topics = [
        topic | {"partitions": [{"partition_index": index, "error_code": error} for index, error in enumerate(each)]}
        for each in errors
    ]
    frame = codec.encode_response(ApiKey.OFFSET_COMMIT, version, {"topics": topics}, 7)
    assert read_answer(ApiKey.OFFSET_COMMIT, version, frame) == MemberAnswer(kept, 0)


@pytest.mark.parametrize(("error", "kept"), [(0, True), (27, True), (79, True), (22, False), (25, False), (30, False)])
@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=lambda each: str(getattr(each, "name", each)))
def test_answer_tells_if_the_client_is_a_member(api, version, error, kept):
    values = {"error_code": error}
    if api not in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT):
        values |= NAMED
    frame = codec.encode_response(api, version, values, 7)
    assert read_answer(api, version, frame) == MemberAnswer(kept, values.get("heartbeat_interval_ms", 0))
