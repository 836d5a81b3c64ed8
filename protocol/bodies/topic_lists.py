"""Reads and edits lists of topics in CreateTopics, DeleteTopics and CreatePartitions; all other bytes stay unchanged.

Layouts: ``CreateTopics*.json`` v0-7, ``DeleteTopics*.json`` v0-6, ``CreatePartitions*.json`` v0-3 of Kafka 4.3. Elements are
copied as bytes, so unknown tagged fields survive.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from protocol.api_keys import APIS, NEVER, ApiKey, request_header_version, response_header_version
from protocol.cursor import INT16, INT32, Buffer, Reader
from protocol.encoding import array_count, encode_message, spliced
from protocol.errors import InvalidFrame

NO_ID: Final = bytes(16)
"""The topic id of a topic that the message identifies by name."""

_TIMEOUT_BYTES: Final = 4
_CONFIG_FLAGS_BYTES: Final = 3  # read-only, source, sensitive
MAX_NAME_BYTES: Final = 249
"""The longest name of a topic (Kafka's `Topic.MAX_NAME_LENGTH`)."""
_T = TypeVar("_T")
_LEGAL_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{MAX_NAME_BYTES}}}")


class RequestedTopic(NamedTuple):
    """A topic of a request, at `start` to `end` in its frame.

    `name` is None if the request has the topic's id. `name_field` is the encoded name. `partitions` is the requested number
    (0 for DeleteTopics). `assignments` is the number of partitions with a manual replica assignment, -1 for none.
    `replication_factor` is for CreateTopics.
    """

    name: str | None
    name_field: bytes
    topic_id: bytes
    partitions: int
    assignments: int
    replication_factor: int
    start: int
    end: int


class TopicsRequest(NamedTuple):
    """The topics of a request. Their array spans `start` to `end`."""

    topics: Sequence[RequestedTopic]
    validate_only: bool
    start: int
    end: int


class TopicResult(NamedTuple):
    """A broker's result for one topic, at `start` to `end` in its frame. `partitions` is -1 if the result has none."""

    name: str | None
    topic_id: bytes
    error: int
    partitions: int
    start: int
    end: int


class TopicsResponse(NamedTuple):
    """The results of a response. Their array spans `start` to `end`."""

    results: Sequence[TopicResult]
    start: int
    end: int


class TopicsApi(NamedTuple):
    """The first versions of an API with validate_only in requests, and with error messages and topic ids in results.

    From `strict_since` on, results may have THROTTLING_QUOTA_EXCEEDED.
    """

    strict_since: int
    validate_since: int
    message_since: int
    topic_id_since: int


TOPICS_APIS: Final[dict[int, TopicsApi]] = {
    ApiKey.CREATE_TOPICS: TopicsApi(strict_since=6, validate_since=1, message_since=1, topic_id_since=7),
    ApiKey.DELETE_TOPICS: TopicsApi(strict_since=5, validate_since=NEVER, message_since=5, topic_id_since=6),
    ApiKey.CREATE_PARTITIONS: TopicsApi(strict_since=3, validate_since=0, message_since=0, topic_id_since=NEVER),
}


def read_request(api_key: ApiKey, version: int, frame: Buffer, body_offset: int) -> TopicsRequest:
    """Decode a whole request frame. Raises `InvalidFrame` for each body that brokers refuse. As there, bytes may follow it."""
    reader = Reader.of_whole_request(frame, body_offset, compact=request_header_version(api_key, version) >= 2)
    topics = [_read_topic(reader, api_key, version) for _ in range(_elements(reader))]
    end = reader.pos
    reader.skip(_TIMEOUT_BYTES)
    validate_only = version >= TOPICS_APIS[api_key].validate_since and reader.byte() != 0
    reader.skip_tags()
    return TopicsRequest(topics, validate_only, body_offset, end)


def _read_topic(reader: Reader, api_key: ApiKey, version: int) -> RequestedTopic:
    start = reader.pos
    name = reader.string()
    name_field = bytes(reader.buf[start : reader.pos])
    by_id = api_key == ApiKey.DELETE_TOPICS and version >= TOPICS_APIS[api_key].topic_id_since
    topic_id = reader.take(len(NO_ID)) if by_id else NO_ID
    if name is None and not by_id:
        raise InvalidFrame("bad_count", "a topic without a name")
    partitions, assignments, replication_factor = 0, -1, -1
    if api_key == ApiKey.CREATE_TOPICS:
        partitions = reader.int32()
        replication_factor = reader.int16()
        assignments = _elements(reader) or -1
        for _ in range(assignments):
            reader.skip(INT32.size)
            _skip_broker_ids(reader)
            reader.skip_tags()
        for _ in range(_elements(reader)):  # configs
            reader.skip(reader.length(wide=False))
            reader.skip_string()
            reader.skip_tags()
    elif api_key == ApiKey.CREATE_PARTITIONS:
        partitions = reader.int32()
        assignments = reader.size(wide=True)
        reader.spend(max(assignments, 0))
        for _ in range(assignments):
            _skip_broker_ids(reader)
            reader.skip_tags()
    if by_id or api_key != ApiKey.DELETE_TOPICS:  # older DeleteTopics have an array of names
        reader.skip_tags()
    return RequestedTopic(name, name_field, topic_id, partitions, assignments, replication_factor, start, reader.pos)


def _elements(reader: Reader) -> int:
    """The number of elements of an array that may not be null."""
    count = reader.length(wide=True)
    reader.spend(count)
    return count


def _skip_broker_ids(reader: Reader) -> None:
    reader.skip(INT32.size * reader.length(wide=True))


def read_response(api_key: ApiKey, version: int, frame: Buffer) -> TopicsResponse:
    """The results of a whole response frame, of CreateTopics from v5 on with partition counts. Raises `InvalidFrame`."""
    return TopicsResponse(*read_results(api_key, version, frame, lambda reader: _read_result(reader, api_key, version)))


def read_results(api_key: ApiKey, version: int, frame: Buffer, read: Callable[[Reader], _T]) -> tuple[list[_T], int, int]:
    """The results of a whole response frame, decoded by `read`, and the start and the end of their array.

    Raises `InvalidFrame`.
    """
    reader = Reader.of_whole_response(frame, header_version=response_header_version(api_key, version))
    if version >= APIS[api_key].throttle_since:
        reader.skip(INT32.size)
    start = reader.pos
    results = [read(reader) for _ in range(reader.count())]
    return results, start, reader.pos


def _read_result(reader: Reader, api_key: ApiKey, version: int) -> TopicResult:
    api = TOPICS_APIS[api_key]
    start = reader.pos
    name = reader.string()
    topic_id = reader.take(len(NO_ID)) if version >= api.topic_id_since else NO_ID
    error = reader.int16()
    if version >= api.message_since:
        reader.skip_string()
    partitions = -1
    if api_key == ApiKey.CREATE_TOPICS and reader.compact:
        partitions = reader.int32()
        reader.skip(INT16.size)
        for _ in range(reader.count()):  # configs
            reader.skip_string()
            reader.skip_string()
            reader.skip(_CONFIG_FLAGS_BYTES)
            reader.skip_tags()
    reader.skip_tags()
    return TopicResult(name, topic_id, error, partitions, start, reader.pos)


def refuse(api_key: ApiKey, version: int, topic: RequestedTopic, error: int, message: str | None = None) -> bytes:
    """The result of a refused topic."""
    api = TOPICS_APIS[api_key]
    compact = response_header_version(api_key, version) >= 1
    result = topic.name_field + (topic.topic_id if version >= api.topic_id_since else b"") + INT16.pack(error)
    if version >= api.message_since:
        result += encode_message(message, compact=compact)
    if api_key == ApiKey.CREATE_TOPICS and compact:
        result += INT32.pack(-1) + INT16.pack(-1) + b"\x01"  # no partitions, no replication factor, no configs
    return result + b"\0" if compact else result


def keep(api_key: ApiKey, version: int, frame: Buffer, request: TopicsRequest, topics: Iterable[RequestedTopic]) -> bytes:
    """The request frame with only these topics."""
    compact = request_header_version(api_key, version) >= 2
    elements = [bytes(frame[topic.start : topic.end]) for topic in topics]
    return spliced(frame, [(request.start, request.end, _array(elements, compact))])


def answer_with(api_key: ApiKey, version: int, frame: Buffer, start: int, end: int, results: Sequence[bytes]) -> bytes:
    """The response frame with these results instead of its own, whose array spans `start` to `end`."""
    compact = response_header_version(api_key, version) >= 1
    return spliced(frame, [(start, end, _array(results, compact))])


def make_answer(api_key: ApiKey, version: int, correlation_id: int, results: Sequence[bytes]) -> bytes:
    """A response frame with these results and no throttle time."""
    compact = response_header_version(api_key, version) >= 1
    body = [INT32.pack(correlation_id), b"\0" if compact else b""]
    if version >= APIS[api_key].throttle_since:
        body.append(INT32.pack(0))
    body += (_array(results, compact), b"\0" if compact else b"")
    frame = b"".join(body)
    return INT32.pack(len(frame)) + frame


def is_legal_name(name: str) -> bool:
    """The same rule as Kafka's `Topic.validate`: no cluster has a topic with another name."""
    return _LEGAL_NAME.fullmatch(name) is not None and name not in {".", ".."}


def _array(elements: Sequence[bytes], compact: bool) -> bytes:
    return array_count(len(elements), compact=compact) + b"".join(elements)
