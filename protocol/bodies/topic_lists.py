"""Reads and edits lists of topics in CreateTopics, DeleteTopics and CreatePartitions; all other bytes stay unchanged.

List elements are copied as bytes, so unknown tagged fields survive.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from protocol.api_keys import APIS, NEVER, ApiKey, request_header_version, response_header_version
from protocol.bodies import addresses
from protocol.cursor import INT16, INT32, MAX_ELEMENTS, Buffer, Reader
from protocol.errors import InvalidFrame

THROTTLING_QUOTA_EXCEEDED: Final = 89
"""Kafka's error code. Brokers omit its default message, and clients add it."""

NO_ID: Final = bytes(16)
"""The topic id of a topic that the message identifies by name."""

_TIMEOUT_BYTES: Final = 4
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


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


ReadTopic = Callable[[Reader, int], RequestedTopic]
ReadResult = Callable[[Reader, int], TopicResult]


def read_request(
    api_key: ApiKey, read: ReadTopic, version: int, frame: Buffer, body_offset: int, *, validate_since: int = NEVER
) -> TopicsRequest:
    """Decode a whole request frame: the topics, a timeout, and from `validate_since` on the flag validate_only.

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
    """The request frame with only these topics."""
    compact = request_header_version(api_key, version) >= 2
    elements = [bytes(frame[topic.start : topic.end]) for topic in topics]
    return addresses.spliced(frame, [(request.start, request.end, _array(elements, compact))])


def answer_with(api_key: ApiKey, version: int, frame: Buffer, response: TopicsResponse, results: Sequence[bytes]) -> bytes:
    """The response frame with these results instead of its own."""
    compact = response_header_version(api_key, version) >= 1
    return addresses.spliced(frame, [(response.start, response.end, _array(results, compact))])


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


def nullable_string(text: str | None, *, compact: bool) -> bytes:
    if text is not None:
        return addresses.encode_string(text, compact=compact)
    return b"\0" if compact else INT16.pack(-1)


def read_name(reader: Reader, *, compact: bool) -> tuple[str | None, bytes]:
    """A topic's name, and its encoded bytes."""
    start = reader.pos
    name = reader.string(compact=compact)
    return name, bytes(reader.buf[start : reader.pos])


def _array(elements: Sequence[bytes], compact: bool) -> bytes:
    return addresses.array_count(len(elements), compact=compact) + b"".join(elements)


def skip_int32s(reader: Reader, *, compact: bool) -> None:
    """Skip an array of 32-bit integers."""
    reader.skip(INT32.size * max(reader.size(compact=compact, wide=True), 0))


def required(name: str | None) -> str:
    """Raises `InvalidFrame` if the name is null."""
    if name is None:
        raise InvalidFrame("bad_count", "a topic without a name")
    return name
