"""JoinGroup's session timeout, and the answers to JoinGroup and to heartbeats, in every version."""

import pytest

from protocol.api_keys import APIS, ApiKey
from protocol.bodies.group_membership import MemberAnswer, read_answer, session_timeout_ms
from protocol.errors import Incomplete
from protocol.headers import parse_request_header
from tests.protocol import codec

VERSIONS = [
    (api, version)
    for api in (ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT,
                ApiKey.STREAMS_GROUP_HEARTBEAT)
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


@pytest.mark.parametrize(("error", "kept"), [(0, True), (27, True), (79, True), (22, False), (25, False), (30, False)])
@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=lambda each: str(getattr(each, "name", each)))
def test_answer_tells_if_the_client_is_a_member(api, version, error, kept):
    values = {"error_code": error}
    if api not in (ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT):
        values |= NAMED
    frame = codec.encode_response(api, version, values, 7)
    assert read_answer(api, version, frame) == MemberAnswer(kept, values.get("heartbeat_interval_ms", 0))
