"""Reads the partitions of a Produce request, and encodes the response that refuses all of them.

Layouts: ``ProduceRequest.json`` and ``ProduceResponse.json`` of Kafka 4.3 (v3-13), KIP-896 for older versions.
"""

from struct import Struct
from typing import Final

from protocol.bodies.addresses import array_count, encode_utf8
from protocol.bodies.produce import peek_acks
from protocol.cursor import INT32, Buffer, Reader

_TRANSACTIONAL_SINCE: Final = 3
_RECORD_ERRORS_SINCE: Final = 8
_FLEXIBLE_SINCE: Final = 9
TOPIC_ID_SINCE: Final = 13
"""The first version with topic ids instead of names."""
_THROTTLE_SINCE: Final = 1
_LOG_APPEND_TIME_SINCE: Final = 2
_LOG_START_OFFSET_SINCE: Final = 5

_TIMEOUT_BYTES: Final = 4
_UUID_BYTES: Final = 16
_INDEX_ERROR_OFFSET: Final = Struct(">ihq")
_MINUS_ONE_64: Final = b"\xff" * 8

Partitions = list[tuple[bytes, list[int]]]
"""(topic name as UTF-8 or, from v13, the 16 bytes of its id; its partition indexes), in the request's order."""


def only_topic(buf: Buffer, acks_end: int, seen: int, frame_end: int, version: int) -> bytes:
    """The topic (name or id) of a Produce request for one topic; b"" if the request has several. acks ends at `acks_end`.

    Raises `Incomplete` if the topic lies behind `seen`, `InvalidFrame` if it exceeds `frame_end`.
    """
    reader = Reader(buf, acks_end, seen, frame_end, compact=version >= _FLEXIBLE_SINCE)
    reader.skip(_TIMEOUT_BYTES)
    return read_topic(reader, version) if reader.count() == 1 else b""


def read_partitions(frame: bytes, body_offset: int, version: int) -> Partitions:
    """The partitions of a whole Produce request. Raises `InvalidFrame`."""
    end = len(frame)
    _, pos = peek_acks(frame, body_offset, end, version)
    reader = Reader(frame, pos, end, end, compact=version >= _FLEXIBLE_SINCE)
    reader.skip(_TIMEOUT_BYTES)
    topics: Partitions = []
    for _ in range(reader.count()):
        topic = read_topic(reader, version)
        indexes: list[int] = []
        for _ in range(reader.count()):
            indexes.append(reader.int32())
            reader.skip_bytes()
            reader.skip_tags()
        reader.skip_tags()
        topics.append((topic, indexes))
    return topics


def refuse(
    version: int, correlation_id: int, topics: Partitions, error_code: int, message: str, throttle_time_ms: int = 0
) -> bytes:
    """A response frame that refuses all of these partitions. It contains `message` from v8 on."""
    compact = version >= _FLEXIBLE_SINCE
    tags = b"\0" if compact else b""
    result = failed_partition(version, 0, error_code, message)[INT32.size :]
    out = bytearray(INT32.pack(correlation_id) + tags + array_count(len(topics), compact=compact))
    for topic, indexes in topics:
        out += topic_field(version, topic) + array_count(len(indexes), compact=compact)
        for index in indexes:
            out += INT32.pack(index) + result
        out += tags
    if version >= _THROTTLE_SINCE:
        out += INT32.pack(throttle_time_ms)
    out += tags
    return INT32.pack(len(out)) + bytes(out)


def failed_partition(version: int, index: int, error_code: int, message: str) -> bytes:
    """The result of a partition without an append: offsets and timestamps are -1."""
    compact = version >= _FLEXIBLE_SINCE
    result = bytearray(_INDEX_ERROR_OFFSET.pack(index, error_code, -1))
    if version >= _LOG_APPEND_TIME_SINCE:
        result += _MINUS_ONE_64
    if version >= _LOG_START_OFFSET_SINCE:
        result += _MINUS_ONE_64
    if version >= _RECORD_ERRORS_SINCE:
        result += array_count(0, compact=compact) + encode_utf8(message.encode(), compact=compact)
    if compact:
        result.append(0)
    return bytes(result)


def topic_field(version: int, topic: bytes) -> bytes:
    """A topic's encoded name or, from v13, its id."""
    return topic if version >= TOPIC_ID_SINCE else encode_utf8(topic, compact=version >= _FLEXIBLE_SINCE)


def read_topic(reader: Reader, version: int) -> bytes:
    """A topic's name as UTF-8 or, from v13, the 16 bytes of its id."""
    if version >= TOPIC_ID_SINCE:
        return reader.take(_UUID_BYTES)
    return reader.take(max(reader.size(wide=False), 0))
