"""The requests of a consumer group's members, and the coordinator's answers: JoinGroup, SyncGroup, OffsetCommit, heartbeats.

Source: ``JoinGroupRequest.json``, ``OffsetCommitRequest.json`` and the responses. The responses to JoinGroup and SyncGroup
begin with the fields of ``HeartbeatResponse.json``. So do those to the heartbeats of consumer groups (KIP-848), share groups
(KIP-932) and streams groups (KIP-1071).
"""

from typing import Final, NamedTuple

from protocol.api_keys import APIS, ApiKey
from protocol.cursor import INT32, UUID_BYTES, Buffer, Reader
from protocol.error_codes import ErrorCode

_HEARTBEAT: Final = int(ApiKey.HEARTBEAT)
_JOIN_GROUP: Final = int(ApiKey.JOIN_GROUP)
_OFFSET_COMMIT: Final = int(ApiKey.OFFSET_COMMIT)
_SYNC_GROUP: Final = int(ApiKey.SYNC_GROUP)
_GENERATION_SINCE: Final = 1
_TOPIC_ID_SINCE: Final = 10
_KEPT: Final = frozenset({ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED})
"""With an error of these, the member is to join again, or with its new id."""


class MemberAnswer(NamedTuple):
    """The coordinator's answer. `kept`: the client is a member. `interval_ms` of its heartbeats, 0 if the answer has none."""

    kept: bool
    interval_ms: int


def session_timeout_ms(version: int, buf: Buffer, body_offset: int, seen: int, frame_end: int) -> int:
    """The session timeout in a JoinGroup request.

    Raises `Incomplete` if it lies behind `seen`, `InvalidFrame` if it lies behind `frame_end`.
    """
    compact = version >= APIS[_JOIN_GROUP].flexible_since
    reader = Reader(buf, body_offset, seen, frame_end, compact=compact)
    reader.skip_string()  # group_id
    return reader.int32()


def commits_as_member(version: int, buf: Buffer, body_offset: int, seen: int, frame_end: int) -> bool:
    """True for an OffsetCommit with a member and its generation, or epoch, which the coordinator checks.

    Without a generation, it takes commits from any client, as long as the group has no members. Raises `Incomplete` if the
    fields lie behind `seen`, `InvalidFrame` if they lie behind `frame_end`.
    """
    if version < _GENERATION_SINCE:
        return False
    compact = version >= APIS[_OFFSET_COMMIT].flexible_since
    reader = Reader(buf, body_offset, seen, frame_end, compact=compact)
    reader.skip_string()  # group_id
    generation = reader.int32()
    return reader.size(wide=False) > 0 and generation >= 0


def read_answer(api_key: int, version: int, frame: Buffer) -> MemberAnswer:
    """The answer in the whole frame of a response. Raises `InvalidFrame`."""
    spec = APIS[api_key]
    reader = Reader.of_whole_response(frame, header_version=int(version >= spec.flexible_since))
    if version >= spec.throttle_since:
        reader.skip(INT32.size)
    if api_key == _OFFSET_COMMIT:
        return MemberAnswer(_has_committed(reader, version), 0)
    kept = reader.int16() in _KEPT
    if api_key in (_HEARTBEAT, _JOIN_GROUP, _SYNC_GROUP):
        return MemberAnswer(kept, 0)
    reader.skip_string()  # error message
    reader.skip_string()  # member id
    reader.skip(INT32.size)  # member epoch
    return MemberAnswer(kept, reader.int32())


def _has_committed(reader: Reader, version: int) -> bool:
    """True if the coordinator has taken a partition. It checks the member first, and refuses all partitions of a wrong one.

    An answer without partitions, or with other errors only, shows nothing. A broker refuses unknown topics, and those that the
    client may not read, without a question to the coordinator.
    """
    for _ in range(reader.count()):
        if version >= _TOPIC_ID_SINCE:
            reader.skip(UUID_BYTES)
        else:
            reader.skip_string()
        for _ in range(reader.count()):
            reader.skip(INT32.size)
            if reader.int16() == ErrorCode.NONE:
                return True
            reader.skip_tags()
        reader.skip_tags()
    return False
