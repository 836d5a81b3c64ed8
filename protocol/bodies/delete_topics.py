"""DeleteTopics: the topics, by name or from v6 by id, and the result of each (``DeleteTopics*.json``, v0-6)."""

from typing import Final

from protocol.api_keys import ApiKey
from protocol.bodies import topic_lists
from protocol.bodies.topic_lists import NO_ID, RequestedTopic, TopicResult, TopicsRequest, TopicsResponse
from protocol.cursor import INT16, Buffer, Reader

KEY: Final = ApiKey.DELETE_TOPICS
STRICT_SINCE: Final = 5
"""The first version with THROTTLING_QUOTA_EXCEEDED."""

_FLEXIBLE_SINCE: Final = 4
_MESSAGE_SINCE: Final = 5
_TOPIC_ID_SINCE: Final = 6


def read_request(version: int, frame: Buffer, body_offset: int) -> TopicsRequest:
    """The topics of a whole request frame. Raises `InvalidFrame`."""
    return topic_lists.read_request(KEY, _read_topic, version, frame, body_offset)


def read_response(version: int, frame: Buffer) -> TopicsResponse:
    """The results in a whole response frame. Raises `InvalidFrame`."""
    return topic_lists.read_response(KEY, _read_result, version, frame)


def refuse(version: int, name_field: bytes, topic_id: bytes, error: int, message: str | None = None) -> bytes:
    """The result of a refused topic."""
    result = name_field + (topic_id if version >= _TOPIC_ID_SINCE else b"") + INT16.pack(error)
    if version >= _MESSAGE_SINCE:
        result += topic_lists.nullable_string(message, compact=True)
    return result + b"\0" if version >= _FLEXIBLE_SINCE else result


def _read_topic(reader: Reader, version: int) -> RequestedTopic:
    start = reader.pos
    name, name_field = topic_lists.read_name(reader, compact=version >= _FLEXIBLE_SINCE)
    topic_id = NO_ID
    if version >= _TOPIC_ID_SINCE:
        topic_id = reader.take(len(NO_ID))
        reader.skip_tags()
    else:
        name = topic_lists.required(name)
    return RequestedTopic(name, name_field, topic_id, 0, -1, -1, start, reader.pos)


def _read_result(reader: Reader, version: int) -> TopicResult:
    compact = version >= _FLEXIBLE_SINCE
    start = reader.pos
    name = reader.string(compact=compact)
    topic_id = reader.take(len(NO_ID)) if version >= _TOPIC_ID_SINCE else NO_ID
    error = reader.int16()
    if version >= _MESSAGE_SINCE:
        reader.skip_string(compact=compact)
    if compact:
        reader.skip_tags()
    return TopicResult(name, topic_id, error, -1, start, reader.pos)
