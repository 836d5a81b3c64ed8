"""Requests that name topics, and answers with a result for each: topics are left out and results put in by splicing.

What is common to CreateTopics, DeleteTopics and CreatePartitions. Elements are copied as they came, so tagged fields that
nobody here knows survive.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from protocol.api_keys import APIS, NEVER, ApiKey, request_header_version, response_header_version
from protocol.bodies import addresses
from protocol.cursor import INT16, INT32, MAX_ELEMENTS, Buffer, Reader
from protocol.errors import InvalidFrame

THROTTLING_QUOTA_EXCEEDED: Final = 89
"""Kafka's error code. Its default message is left out on the wire, and put in again by clients."""

NO_ID: Final = bytes(16)
"""The topic id of a topic that is named instead."""

_TIMEOUT_BYTES: Final = 4
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class RequestedTopic(NamedTuple):
    """A topic of a request, from `start` to `end` in its frame.

    `name` is None where the topic is named by its id; `name_field` is how the name stands there. `partitions` is what the
    request says of them (0 for DeleteTopics); `assignments` the number of partitions whose replicas are assigned by hand, -1
    for none; `replication_factor` is that of CreateTopics.
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
    """The topics of a request, whose array goes from `start` to `end`. `validate_only`: nothing is to be changed."""

    topics: Sequence[RequestedTopic]
    validate_only: bool
    start: int
    end: int


class TopicResult(NamedTuple):
    """What a broker says of one topic, from `start` to `end` in its frame. `partitions` is -1 where it does not tell."""

    name: str | None
    topic_id: bytes
    error: int
    partitions: int
    start: int
    end: int


class TopicsResponse(NamedTuple):
    """The results of a response, whose array goes from `start` to `end`."""

    results: Sequence[TopicResult]
    start: int
    end: int


ReadTopic = Callable[[Reader, int], RequestedTopic]
ReadResult = Callable[[Reader, int], TopicResult]


def read_request(
    api_key: ApiKey, read: ReadTopic, version: int, frame: Buffer, body_offset: int, *, validate_since: int = NEVER
) -> TopicsRequest:
    """The topics of a whole request frame, whose body begins with them; a timeout and perhaps the flag follow.

    Raises `InvalidFrame`.
    """
    reader = Reader(frame, body_offset, len(frame), len(frame))
    reader.elements_left = MAX_ELEMENTS
    start = reader.pos
    compact = request_header_version(api_key, version) >= 2
    topics = [read(reader, version) for _ in range(reader.count(compact=compact))]
    end = reader.pos
    reader.skip(_TIMEOUT_BYTES)
    return TopicsRequest(topics, version >= validate_since and reader.byte() != 0, start, end)


def read_response(api_key: ApiKey, read: ReadResult, version: int, frame: Buffer) -> TopicsResponse:
    """The results of a whole response frame. Raises `InvalidFrame`."""
    header_version = response_header_version(api_key, version)
    reader = Reader.of_whole_response(frame, header_version=header_version)
    if version >= APIS[api_key].throttle_since:
        reader.skip(INT32.size)
    start = reader.pos
    results = [read(reader, version) for _ in range(reader.count(compact=header_version >= 1))]
    return TopicsResponse(results, start, reader.pos)


def keep(api_key: ApiKey, version: int, frame: Buffer, request: TopicsRequest, topics: Iterable[RequestedTopic]) -> bytes:
    """The request frame with only those of its topics."""
    compact = request_header_version(api_key, version) >= 2
    elements = [bytes(frame[topic.start : topic.end]) for topic in topics]
    return addresses.spliced(frame, [(request.start, request.end, _array(elements, compact))])


def answer_with(api_key: ApiKey, version: int, frame: Buffer, response: TopicsResponse, results: Sequence[bytes]) -> bytes:
    """The response frame with other results; all else in it stays."""
    compact = response_header_version(api_key, version) >= 1
    return addresses.spliced(frame, [(response.start, response.end, _array(results, compact))])


def make_answer(api_key: ApiKey, version: int, correlation_id: int, results: Sequence[bytes]) -> bytes:
    """A response frame of these results, without a throttle time."""
    compact = response_header_version(api_key, version) >= 1
    body = [INT32.pack(correlation_id), b"\0" if compact else b""]
    if version >= APIS[api_key].throttle_since:
        body.append(INT32.pack(0))
    body += (_array(results, compact), b"\0" if compact else b"")
    frame = b"".join(body)
    return INT32.pack(len(frame)) + frame


def is_legal_name(name: str) -> bool:
    """Follows Kafka's `Topic.validate`: no cluster has a topic with another name."""
    return _LEGAL_NAME.fullmatch(name) is not None and name not in {".", ".."}


def nullable_string(text: str | None, *, compact: bool) -> bytes:
    """A string, or null."""
    if text is not None:
        return addresses.encode_string(text, compact=compact)
    return b"\0" if compact else INT16.pack(-1)


def read_name(reader: Reader, *, compact: bool) -> tuple[str | None, bytes]:
    """A topic's name, and the bytes in which it stands."""
    start = reader.pos
    name = reader.string(compact=compact)
    return name, bytes(reader.buf[start : reader.pos])


def _array(elements: Sequence[bytes], compact: bool) -> bytes:
    count = len(elements)
    return (addresses.encode_uvarint(count + 1) if compact else INT32.pack(count)) + b"".join(elements)


def skip_int32s(reader: Reader, *, compact: bool) -> None:
    """Step over an array of 32-bit integers."""
    reader.skip(INT32.size * max(reader.size(compact=compact, wide=True), 0))


def required(name: str | None) -> str:
    """A name that must not be null. Raises `InvalidFrame`."""
    if name is None:
        raise InvalidFrame("bad_count", "a topic without a name")
    return name
