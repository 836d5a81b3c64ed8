"""Produce: the acks and the topics of a request, the fields of a response, and the response that refuses a request.

Layouts: ``ProduceRequest.json`` and ``ProduceResponse.json`` of Kafka 4.3 (v3-13), KIP-896 for older versions.
"""

import sys
from struct import Struct
from typing import Final

from protocol.cursor import (
    CORRELATION_BYTES,
    INT16,
    INT32,
    LENGTH_BYTES,
    MAX_REPEATED_CHARACTERS,
    THROTTLE_BYTES,
    UUID_BYTES,
    Buffer,
    Reader,
)
from protocol.encoding import array_count, encode_utf8
from protocol.errors import Incomplete

_THROTTLE_SINCE: Final = 1
_LOG_APPEND_TIME_SINCE: Final = 2
TRANSACTIONAL_SINCE: Final = 3
_LOG_START_OFFSET_SINCE: Final = 5
RECORD_ERRORS_SINCE: Final = 8
FLEXIBLE_SINCE: Final = 9
TOPIC_ID_SINCE: Final = 13
"""The first version with topic ids instead of names."""

MAX_PRODUCE_ELEMENTS: Final = 20_000
"""Limit on the topics, partitions and tagged fields of a request whose partitions Weir keeps or answers."""

_ACKS_BYTES: Final = 2
_ARRAY_BYTES: Final = 4
_BATCH_INDEX_BYTES: Final = 4
_INDEX_ERROR_OFFSET: Final = Struct(">ihq")
_INT32_ONE: Final = 1
_NULL: Final = -1  # the length of a null string
TIMEOUT_BYTES: Final = 4

_COMPACT_ONE: Final = 2  # the count of a compact array with one element
_MAX_ONE_BYTE_VARINT: Final = 0x7F
# The bytes 01 00 00 00: no record errors, no error message, no tagged fields in the partition and in the topic.
_COMPACT_NOTHING_ELSE: Final = 0x01000000
_COMPACT_NOTHING_ELSE_BYTES: Final = 4

Partitions = list[tuple[bytes, list[int]]]
"""(topic name as UTF-8 or, from v13, the 16 bytes of its id; its partition indexes), in the request's order."""


def peek_acks(buf: Buffer, body_offset: int, end: int, version: int) -> tuple[int, int]:
    """The acks of the Produce request with its body at `body_offset`, and the offset behind the field.

    acks is 0, 1 or -1 (all). A broker sends no response if acks is 0, so the gateway must know it before it waits for one.
    Raises `Incomplete` if acks lies behind `end`, `InvalidFrame` if the transactional id has an impossible length.
    """
    pos = body_offset
    if version >= TRANSACTIONAL_SINCE:
        compact = version >= FLEXIBLE_SINCE
        if compact and pos < end and buf[pos] <= 1:  # null or empty
            pos += 1
        else:
            reader = Reader(buf, pos, end, sys.maxsize, compact=compact)
            reader.skip_string()
            pos = reader.pos
    after = pos + _ACKS_BYTES
    if after > end:
        raise Incomplete(after)
    return INT16.unpack_from(buf, pos)[0], after


def wanting_answer(frame: bytes, after: int) -> bytes:
    """The request's frame, or its beginning, with acks=1. The field ends at `after`."""
    view = memoryview(frame)
    return b"".join((view[: after - _ACKS_BYTES], INT16.pack(1), view[after:]))


def skip_errors(reader: Reader) -> None:
    """Skip the record errors and the error message of one partition's result (v8+)."""
    for _ in range(reader.count()):
        reader.skip(_BATCH_INDEX_BYTES)
        reader.skip_string()
        reader.skip_tags()
    reader.skip_string()


def partition_bytes(version: int) -> int:
    """The size of index, error_code and base_offset, of log_append_time (v2+) and of log_start_offset (v5+)."""
    return 14 + 8 * (version >= _LOG_APPEND_TIME_SINCE) + 8 * (version >= _LOG_START_OFFSET_SINCE)


def single_partition_throttle(frame: Buffer, start: int, end: int, version: int) -> int:
    """The offset of throttle_time_ms in a response (v1+) with one topic, one partition and no error texts.

    Nearly every Produce response has this shape. Returns -1 for any other shape, or if the field has not arrived before
    `end`; the caller then needs a `TailScanner`. Never raises.
    """
    pos = start + LENGTH_BYTES + CORRELATION_BYTES
    if version < FLEXIBLE_SINCE:
        return _plain_single_partition_throttle(frame, pos, end, version)
    if pos + 3 > end or frame[pos] or frame[pos + 1] != _COMPACT_ONE:
        return -1
    pos += 2
    if version >= TOPIC_ID_SINCE:
        pos += UUID_BYTES
    elif frame[pos] <= _MAX_ONE_BYTE_VARINT:
        pos += max(frame[pos], 1)
    else:
        return -1
    rest = pos + 1 + partition_bytes(version)
    offset = rest + _COMPACT_NOTHING_ELSE_BYTES
    if offset + THROTTLE_BYTES > end or frame[pos] != _COMPACT_ONE:
        return -1
    return offset if INT32.unpack_from(frame, rest)[0] == _COMPACT_NOTHING_ELSE else -1


def _plain_single_partition_throttle(frame: Buffer, pos: int, end: int, version: int) -> int:
    if pos + _ARRAY_BYTES + 2 > end or INT32.unpack_from(frame, pos)[0] != _INT32_ONE:
        return -1
    name_bytes = INT16.unpack_from(frame, pos + _ARRAY_BYTES)[0]
    if name_bytes < _NULL:
        return -1
    pos += _ARRAY_BYTES + 2 + max(name_bytes, 0)
    rest = pos + _ARRAY_BYTES + partition_bytes(version)
    offset = rest
    if version >= RECORD_ERRORS_SINCE:
        offset += _ARRAY_BYTES + 2
    if offset + THROTTLE_BYTES > end or INT32.unpack_from(frame, pos)[0] != _INT32_ONE:
        return -1
    if version >= RECORD_ERRORS_SINCE:
        no_record_errors = INT32.unpack_from(frame, rest)[0] == 0
        if not no_record_errors or not _NULL <= INT16.unpack_from(frame, rest + _ARRAY_BYTES)[0] <= 0:
            return -1
    return offset


def only_topic(buf: Buffer, acks_end: int, seen: int, frame_end: int, version: int) -> bytes:
    """The topic (name or id) of a Produce request for one topic; b"" if the request has several. acks ends at `acks_end`.

    Raises `Incomplete` if the topic lies behind `seen`, `InvalidFrame` if it exceeds `frame_end`.
    """
    reader = Reader(buf, acks_end, seen, frame_end, compact=version >= FLEXIBLE_SINCE)
    reader.skip(TIMEOUT_BYTES)
    return read_topic(reader, version) if reader.count() == 1 else b""


def refuse(
    version: int, correlation_id: int, topics: Partitions, error_code: int, message: str, throttle_time_ms: int = 0
) -> bytes:
    """A response frame that refuses all of these partitions. It contains `message` from v8 on, once or in each result."""
    compact = version >= FLEXIBLE_SINCE
    tags = b"\0" if compact else b""
    result = failed_partition(version, 0, error_code, message)[INT32.size :]
    further = failed_partition(version, 0, error_code, further_message(message, sum([len(found) for _, found in topics])))[
        INT32.size :
    ]
    out = bytearray(INT32.pack(correlation_id) + tags + array_count(len(topics), compact=compact))
    for topic, indexes in topics:
        out += topic_field(version, topic) + array_count(len(indexes), compact=compact)
        for index in indexes:
            out += INT32.pack(index) + result
            result = further
        out += tags
    if version >= _THROTTLE_SINCE:
        out += INT32.pack(throttle_time_ms)
    out += tags
    return INT32.pack(len(out)) + bytes(out)


def further_message(message: str, results: int) -> str | None:
    """The message of all `results` but the first: the same one, or None beyond `MAX_REPEATED_CHARACTERS`."""
    return message if len(message) * results <= MAX_REPEATED_CHARACTERS else None


def failed_partition(version: int, index: int, error_code: int, message: str | None) -> bytes:
    """The result of a partition without an append: offsets and timestamps are -1."""
    compact = version >= FLEXIBLE_SINCE
    result = bytearray(_INDEX_ERROR_OFFSET.pack(index, error_code, -1))
    result += b"\xff" * (partition_bytes(version) - len(result))
    if version >= RECORD_ERRORS_SINCE:
        result += array_count(0, compact=compact)
        if message is None:
            result += b"\0" if compact else INT16.pack(_NULL)
        else:
            result += encode_utf8(message.encode(), compact=compact)
    if compact:
        result.append(0)
    return bytes(result)


def topic_field(version: int, topic: bytes) -> bytes:
    """A topic's encoded name or, from v13, its id."""
    return topic if version >= TOPIC_ID_SINCE else encode_utf8(topic, compact=version >= FLEXIBLE_SINCE)


def read_topic(reader: Reader, version: int) -> bytes:
    """A topic's name as UTF-8 or, from v13, the 16 bytes of its id."""
    if version >= TOPIC_ID_SINCE:
        return reader.take(UUID_BYTES)
    return reader.take(max(reader.size(wide=False), 0))
