"""A Produce request that is not appended: which partitions it is for, and the answer that refuses all of them.

Layouts: ``ProduceRequest.json`` and ``ProduceResponse.json`` of Kafka 4.3 (v3-13), KIP-896 for the versions before.
"""

from struct import Struct
from typing import Final

from protocol.bodies.produce import peek_acks
from protocol.cursor import Buffer, Reader

_TRANSACTIONAL_SINCE: Final = 3
_RECORD_ERRORS_SINCE: Final = 8
_FLEXIBLE_SINCE: Final = 9
_TOPIC_ID_SINCE: Final = 13
_THROTTLE_SINCE: Final = 1
_LOG_APPEND_TIME_SINCE: Final = 2
_LOG_START_OFFSET_SINCE: Final = 5

_TIMEOUT_BYTES: Final = 4
_UUID_BYTES: Final = 16
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INDEX_ERROR_OFFSET: Final = Struct(">ihq")
_MINUS_ONE_64: Final = b"\xff" * 8

Partitions = list[tuple[bytes, list[int]]]
"""Each topic, by its name's bytes or (v13+) the sixteen of its id, and the partitions of it, in the request's order."""


def only_topic(buf: Buffer, acks_end: int, seen: int, frame_end: int, version: int) -> bytes:
    """The topic of a Produce request for one alone, by name or id; b"" where it is for several. `acks_end` is behind its acks.

    Raises `Incomplete` while it lies behind `seen`, `InvalidFrame` where it can't lie before `frame_end`.
    """
    reader = Reader(buf, acks_end, seen, frame_end)
    reader.skip(_TIMEOUT_BYTES)
    one = reader.count(compact=version >= _FLEXIBLE_SINCE) == 1
    return _topic(reader, version) if one else b""


def read_partitions(frame: bytes, body_offset: int, version: int) -> Partitions:
    """The partitions of a whole Produce request. Raises `InvalidFrame`."""
    end = len(frame)
    _, pos = peek_acks(frame, body_offset, end, version)
    reader = Reader(frame, pos, end, end)
    reader.skip(_TIMEOUT_BYTES)
    compact = version >= _FLEXIBLE_SINCE
    topics: Partitions = []
    for _ in range(reader.count(compact=compact)):
        topic = _topic(reader, version)
        indexes: list[int] = []
        for _ in range(reader.count(compact=compact)):
            indexes.append(reader.int32())
            reader.skip_bytes(compact=compact)
            if compact:
                reader.skip_tags()
        if compact:
            reader.skip_tags()
        topics.append((topic, indexes))
    return topics


def refuse(version: int, correlation_id: int, topics: Partitions, error_code: int, message: str) -> bytes:
    """The whole answer that refuses these partitions. Without a throttle time; the message is told from v8 on."""
    compact = version >= _FLEXIBLE_SINCE
    tags = b"\0" if compact else b""
    rest = bytearray()
    if version >= _LOG_APPEND_TIME_SINCE:
        rest += _MINUS_ONE_64
    if version >= _LOG_START_OFFSET_SINCE:
        rest += _MINUS_ONE_64
    if version >= _RECORD_ERRORS_SINCE:
        rest += _count(0, compact) + _string(message.encode(), compact)
    rest += tags
    out = bytearray(_INT32.pack(correlation_id) + tags + _count(len(topics), compact))
    for topic, indexes in topics:
        out += topic if version >= _TOPIC_ID_SINCE else _string(topic, compact)
        out += _count(len(indexes), compact)
        for index in indexes:
            out += _INDEX_ERROR_OFFSET.pack(index, error_code, -1) + rest
        out += tags
    if version >= _THROTTLE_SINCE:
        out += _INT32.pack(0)
    out += tags
    return _INT32.pack(len(out)) + bytes(out)


def _topic(reader: Reader, version: int) -> bytes:
    if version >= _TOPIC_ID_SINCE:
        start = reader.skip(_UUID_BYTES)
        return bytes(reader.buf[start : start + _UUID_BYTES])
    size = max(reader.size(compact=version >= _FLEXIBLE_SINCE, wide=False), 0)
    start = reader.skip(size)
    return bytes(reader.buf[start : start + size])


def _count(number: int, compact: bool) -> bytes:
    return _uvarint(number + 1) if compact else _INT32.pack(number)


def _string(text: bytes, compact: bool) -> bytes:
    return (_uvarint(len(text) + 1) if compact else _INT16.pack(len(text))) + text


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
