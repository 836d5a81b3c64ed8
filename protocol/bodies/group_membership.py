"""The requests that keep a member in its group, and their answers: JoinGroup and the heartbeats of all group protocols.

Source: ``JoinGroupRequest.json``, ``JoinGroupResponse.json`` and ``HeartbeatResponse.json``. The responses to the heartbeats of
consumer groups (KIP-848), share groups (KIP-932) and streams groups (KIP-1071) begin with the same fields.
"""

from typing import Final, NamedTuple

from protocol.api_keys import APIS, ApiKey
from protocol.cursor import INT32, Buffer, Reader

_HEARTBEAT: Final = int(ApiKey.HEARTBEAT)
_JOIN_GROUP: Final = int(ApiKey.JOIN_GROUP)
_KEPT: Final = frozenset({0, 27, 79})
"""NONE, REBALANCE_IN_PROGRESS (the member is to join again), MEMBER_ID_REQUIRED (the member is to join with its new id)."""


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


def read_answer(api_key: int, version: int, frame: Buffer) -> MemberAnswer:
    """The answer in the whole frame of a response. Raises `InvalidFrame`."""
    spec = APIS[api_key]
    reader = Reader.of_whole_response(frame, header_version=int(version >= spec.flexible_since))
    if version >= spec.throttle_since:
        reader.skip(INT32.size)
    kept = reader.int16() in _KEPT
    if api_key in (_HEARTBEAT, _JOIN_GROUP):
        return MemberAnswer(kept, 0)
    reader.skip_string()  # error message
    reader.skip_string()  # member id
    reader.skip(INT32.size)  # member epoch
    return MemberAnswer(kept, reader.int32())
