"""CreateTopics: the requested topics with their partitions, and the result of each (``CreateTopics*.json``, v0-7)."""

from typing import Final

from protocol.api_keys import ApiKey
from protocol.bodies import topic_lists
from protocol.bodies.topic_lists import NO_ID, RequestedTopic, TopicResult, TopicsRequest, TopicsResponse
from protocol.cursor import INT16, INT32, Buffer, Reader

KEY: Final = ApiKey.CREATE_TOPICS
STRICT_SINCE: Final = 6
"""The first version with THROTTLING_QUOTA_EXCEEDED."""

_MESSAGE_SINCE: Final = 1
_VALIDATE_SINCE: Final = 1
_FLEXIBLE_SINCE: Final = 5
_TOPIC_ID_SINCE: Final = 7
_CONFIG_FLAGS_BYTES: Final = 3  # read-only, source, sensitive


def read_request(version: int, frame: Buffer, body_offset: int) -> TopicsRequest:
    """The topics of a whole request frame. Raises `InvalidFrame`."""
    return topic_lists.read_request(KEY, _read_topic, version, frame, body_offset, validate_since=_VALIDATE_SINCE)


def read_response(version: int, frame: Buffer) -> TopicsResponse:
    """The results in a whole response frame, from v5 on with partition counts. Raises `InvalidFrame`."""
    return topic_lists.read_response(KEY, _read_result, version, frame)


def refuse(
    version: int,
    name_field: bytes,
    topic_id: bytes,  # noqa: ARG001 - a new topic has no id
    error: int,
    message: str | None = None,
) -> bytes:
    """The result of a refused topic."""
    compact = version >= _FLEXIBLE_SINCE
    result = name_field + (NO_ID if version >= _TOPIC_ID_SINCE else b"") + INT16.pack(error)
    if version >= _MESSAGE_SINCE:
        result += topic_lists.nullable_string(message, compact=compact)
    # -1 partitions, replication factor -1, no configs, no tags
    return result + INT32.pack(-1) + INT16.pack(-1) + b"\x01\0" if compact else result


def _read_topic(reader: Reader, version: int) -> RequestedTopic:
    compact = version >= _FLEXIBLE_SINCE
    start = reader.pos
    name, name_field = topic_lists.read_name(reader, compact=compact)
    partitions = reader.int32()
    replication_factor = reader.int16()
    assignments = reader.count(compact=compact)
    for _ in range(assignments):
        reader.skip(INT32.size)
        topic_lists.skip_int32s(reader, compact=compact)
        if compact:
            reader.skip_tags()
    for _ in range(reader.count(compact=compact)):
        reader.skip_string(compact=compact)
        reader.skip_string(compact=compact)
        if compact:
            reader.skip_tags()
    if compact:
        reader.skip_tags()
    return RequestedTopic(
        topic_lists.required(name), name_field, NO_ID, partitions, assignments or -1, replication_factor, start, reader.pos
    )


def _read_result(reader: Reader, version: int) -> TopicResult:
    compact = version >= _FLEXIBLE_SINCE
    start = reader.pos
    name = reader.string(compact=compact)
    topic_id = reader.take(len(NO_ID)) if version >= _TOPIC_ID_SINCE else NO_ID
    error = reader.int16()
    partitions = -1
    if version >= _MESSAGE_SINCE:
        reader.skip_string(compact=compact)
    if compact:
        partitions = reader.int32()
        reader.skip(INT16.size)
        for _ in range(reader.count(compact=True)):
            reader.skip_string(compact=True)
            reader.skip_string(compact=True)
            reader.skip(_CONFIG_FLAGS_BYTES)
            reader.skip_tags()
        reader.skip_tags()
    return TopicResult(name, topic_id, error, partitions, start, reader.pos)
