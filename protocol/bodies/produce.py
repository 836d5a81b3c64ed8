"""Produce: the acks of a request, and the fields of a response.

Layouts: ``ProduceRequest.json`` and ``ProduceResponse.json`` of Kafka 4.3 (v3-13), KIP-896 for older versions.
"""

import sys
from typing import Final

from protocol.cursor import CORRELATION_BYTES, INT16, INT32, LENGTH_BYTES, Buffer, Reader
from protocol.errors import Incomplete

_TRANSACTIONAL_SINCE: Final = 3
_RECORD_ERRORS_SINCE: Final = 8
_FLEXIBLE_SINCE: Final = 9
_TOPIC_ID_SINCE: Final = 13

_ACKS_BYTES: Final = 2
_ARRAY_BYTES: Final = 4
_BATCH_INDEX_BYTES: Final = 4
_INT32_ONE: Final = 1
_THROTTLE_BYTES: Final = 4
_UUID_BYTES: Final = 16

_COMPACT_ONE: Final = 2  # the count of a compact array with one element
_MAX_ONE_BYTE_VARINT: Final = 0x7F
# The bytes 01 00 00 00: no record errors, no error message, no tagged fields in the partition and in the topic.
_COMPACT_NOTHING_ELSE: Final = 0x01000000
_COMPACT_NOTHING_ELSE_BYTES: Final = 4


def peek_acks(buf: Buffer, body_offset: int, end: int, version: int) -> tuple[int, int]:
    """The acks of the Produce request with its body at `body_offset`, and the offset behind the field.

    acks is 0, 1 or -1 (all). A broker sends no response if acks is 0, so the gateway must know it before it waits for one.
    Raises `Incomplete` if acks lies behind `end`, `InvalidFrame` if the transactional id has an impossible length.
    """
    pos = body_offset
    if version >= _TRANSACTIONAL_SINCE:
        compact = version >= _FLEXIBLE_SINCE
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


def skip_topics(reader: Reader, version: int) -> None:
    """Skip the topics of a response. throttle_time_ms (v1+) and the tagged fields (v9+) follow."""
    fixed = partition_bytes(version)
    for _ in range(reader.count()):
        if version >= _TOPIC_ID_SINCE:
            reader.skip(_UUID_BYTES)
        else:
            reader.skip_string()
        for _ in range(reader.count()):
            reader.skip(fixed)
            if version >= _RECORD_ERRORS_SINCE:
                skip_errors(reader)
            reader.skip_tags()
        reader.skip_tags()


def skip_errors(reader: Reader) -> None:
    """Skip the record errors and the error message of one partition's result (v8+)."""
    for _ in range(reader.count()):
        reader.skip(_BATCH_INDEX_BYTES)
        reader.skip_string()
        reader.skip_tags()
    reader.skip_string()


def partition_bytes(version: int) -> int:
    """The size of index, error_code and base_offset, of log_append_time (v2+) and of log_start_offset (v5+)."""
    return 14 + 8 * (version >= 2) + 8 * (version >= 5)


def single_partition_throttle(frame: Buffer, start: int, end: int, version: int) -> int:
    """The offset of throttle_time_ms in a response (v1+) with one topic, one partition and no error texts.

    Nearly every Produce response has this shape. Returns -1 for any other shape, or if the field has not arrived before
    `end`; the caller then needs `skip_topics`. Never raises.
    """
    pos = start + LENGTH_BYTES + CORRELATION_BYTES
    if version < _FLEXIBLE_SINCE:
        return _plain_single_partition_throttle(frame, pos, end, version)
    if pos + 3 > end or frame[pos] or frame[pos + 1] != _COMPACT_ONE:
        return -1
    pos += 2
    if version >= _TOPIC_ID_SINCE:
        pos += _UUID_BYTES
    elif frame[pos] <= _MAX_ONE_BYTE_VARINT:
        pos += max(frame[pos], 1)
    else:
        return -1
    rest = pos + 1 + partition_bytes(version)
    offset = rest + _COMPACT_NOTHING_ELSE_BYTES
    if offset + _THROTTLE_BYTES > end or frame[pos] != _COMPACT_ONE:
        return -1
    return offset if INT32.unpack_from(frame, rest)[0] == _COMPACT_NOTHING_ELSE else -1


def _plain_single_partition_throttle(frame: Buffer, pos: int, end: int, version: int) -> int:
    if pos + _ARRAY_BYTES + 2 > end or INT32.unpack_from(frame, pos)[0] != _INT32_ONE:
        return -1
    name_bytes = INT16.unpack_from(frame, pos + _ARRAY_BYTES)[0]
    pos += _ARRAY_BYTES + 2 + max(name_bytes, 0)
    rest = pos + _ARRAY_BYTES + partition_bytes(version)
    offset = rest
    if version >= _RECORD_ERRORS_SINCE:
        offset += _ARRAY_BYTES + 2
    if offset + _THROTTLE_BYTES > end or INT32.unpack_from(frame, pos)[0] != _INT32_ONE:
        return -1
    if version >= _RECORD_ERRORS_SINCE:
        no_record_errors = INT32.unpack_from(frame, rest)[0] == 0
        if not no_record_errors or INT16.unpack_from(frame, rest + _ARRAY_BYTES)[0] > 0:
            return -1
    return offset
