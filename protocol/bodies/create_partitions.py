"""CreatePartitions: the new partition counts of topics, and the result of each (``CreatePartitions*.json``, v0-3)."""

from typing import Final

from protocol.api_keys import ApiKey
from protocol.bodies import topic_lists
from protocol.bodies.topic_lists import NO_ID, RequestedTopic, TopicResult, TopicsRequest, TopicsResponse
from protocol.cursor import INT16, Buffer, Reader

KEY: Final = ApiKey.CREATE_PARTITIONS
STRICT_SINCE: Final = 3
"""The first version with THROTTLING_QUOTA_EXCEEDED."""

_FLEXIBLE_SINCE: Final = 2


def read_request(version: int, frame: Buffer, body_offset: int) -> TopicsRequest:
    """The topics of a whole request frame. Raises `InvalidFrame`."""
    return topic_lists.read_request(KEY, _read_topic, version, frame, body_offset, validate_since=0)


def read_response(version: int, frame: Buffer) -> TopicsResponse:
    """The results in a whole response frame. Raises `InvalidFrame`."""
    return topic_lists.read_response(KEY, _read_result, version, frame)


def refuse(
    version: int,
    name_field: bytes,
    topic_id: bytes,  # noqa: ARG001 - this API has no topic ids
    error: int,
    message: str | None = None,
) -> bytes:
    """The result of a refused topic."""
    compact = version >= _FLEXIBLE_SINCE
    return name_field + INT16.pack(error) + topic_lists.nullable_string(message, compact=compact) + (b"\0" if compact else b"")


def _read_topic(reader: Reader, version: int) -> RequestedTopic:
    compact = version >= _FLEXIBLE_SINCE
    start = reader.pos
    name, name_field = topic_lists.read_name(reader, compact=compact)
    partitions = reader.int32()
    assignments = reader.size(compact=compact, wide=True)
    reader.spend(max(assignments, 0))
    for _ in range(assignments):
        topic_lists.skip_int32s(reader, compact=compact)
        if compact:
            reader.skip_tags()
    if compact:
        reader.skip_tags()
    return RequestedTopic(topic_lists.required(name), name_field, NO_ID, partitions, assignments, -1, start, reader.pos)


def _read_result(reader: Reader, version: int) -> TopicResult:
    compact = version >= _FLEXIBLE_SINCE
    start = reader.pos
    name = reader.string(compact=compact)
    error = reader.int16()
    reader.skip_string(compact=compact)
    if compact:
        reader.skip_tags()
    return TopicResult(name, NO_ID, error, -1, start, reader.pos)
