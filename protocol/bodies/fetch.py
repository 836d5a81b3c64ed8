"""Fetch: decodes the head of a request, and of a response that may have arrived only in part.

Layouts: ``FetchRequest.json`` and ``FetchResponse.json`` of Kafka 4.3 (v4-18), KIP-896 for v0-3. Fetch sessions: KIP-227.
"""

from struct import Struct
from typing import Final

from protocol.cursor import INT16, INT32, INT64, LENGTH_BYTES, UUID_BYTES, Buffer, Reader
from protocol.encoding import array_count
from protocol.errors import Incomplete, InvalidFrame

_MAX_BYTES_SINCE: Final = 3
_ISOLATION_SINCE: Final = 4
_LOG_START_SINCE: Final = 5
SESSION_SINCE: Final = 7
_PREFERRED_REPLICA_SINCE: Final = 11
FLEXIBLE_SINCE: Final = 12
_TOPIC_ID_SINCE: Final = 13
_REPLICA_STATE_SINCE: Final = 15

_SHARE_RECORDS_SINCE: Final = 1
_SHARE_LOCK_SINCE: Final = 1
_SHARE_RENEW_SINCE: Final = 2
_SHARE_BATCH_BYTES: Final = 5  # of ShareFetch v2+: the batch size, the acquire mode

_THREE_INTS: Final = Struct(">iii")
_TWO_INTS: Final = Struct(">ii")
_NO_MAX_BYTES: Final = 2**31 - 1
_COMPACT_EMPTY: Final = 1  # the count of a compact array without elements; 0 is null
_SESSION_ID_AT: Final = 13  # behind max_wait, min_bytes, max_bytes and isolation_level
_ABORTED_TRANSACTION_BYTES: Final = 16
_BATCH_LENGTH_AT: Final = 8  # behind the base offset; message formats v0 and v1 have the same position
_BATCH_PREFIX_BYTES: Final = 12


class FetchHead:
    """The fixed fields of a Fetch request. Offsets are absolute in the decoded buffer; times are ms, sizes bytes.

    Up to v2, `max_bytes_offset` is -1 and `max_bytes` is 2**31 - 1 (no limit). Up to v6, `session_id` is 0 and
    `session_epoch` -1: the values of a request without a session. Only a ShareFetch (v1+) has a `max_records_offset`, and one
    that `renews` acquisition locks gets no records (KIP-1222).
    """

    __slots__ = (
        "has_topics",
        "max_bytes",
        "max_bytes_offset",
        "max_records_offset",
        "max_wait",
        "max_wait_offset",
        "min_bytes",
        "min_bytes_offset",
        "renews",
        "session_epoch",
        "session_id",
    )

    def __init__(
        self,
        max_wait_offset: int,
        min_bytes_offset: int,
        max_bytes_offset: int,
        max_wait: int,
        min_bytes: int,
        max_bytes: int,
        session_id: int,
        session_epoch: int,
        *,
        has_topics: bool,
        max_records_offset: int = -1,
        renews: bool = False,
    ) -> None:
        self.max_wait_offset = max_wait_offset
        self.min_bytes_offset = min_bytes_offset
        self.max_bytes_offset = max_bytes_offset
        self.max_wait = max_wait
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.session_id = session_id
        self.session_epoch = session_epoch
        self.has_topics = has_topics
        self.max_records_offset = max_records_offset
        self.renews = renews


def peek_fetch(buf: Buffer, body_offset: int, end: int, version: int) -> FetchHead:
    """The head of the Fetch request with its body at `body_offset`. Decodes at most 29 bytes.

    Raises `Incomplete` if the head continues behind `end`.
    """
    at = body_offset if version >= _REPLICA_STATE_SINCE else body_offset + 4
    if version >= SESSION_SINCE:
        compact = version >= FLEXIBLE_SINCE
        topics = at + 21
        if topics + (1 if compact else 4) > end:
            raise Incomplete
        max_wait, min_bytes, max_bytes = _THREE_INTS.unpack_from(buf, at)
        session_id, epoch = _TWO_INTS.unpack_from(buf, at + _SESSION_ID_AT)
        # The first byte of the compact count is enough: a longer varint has the top bit set.
        has_topics = buf[topics] > _COMPACT_EMPTY if compact else INT32.unpack_from(buf, topics)[0] > 0
        return FetchHead(at, at + 4, at + 8, max_wait, min_bytes, max_bytes, session_id, epoch, has_topics=has_topics)
    return _peek_sessionless(buf, at, end, version)


def peek_share_fetch(buf: Buffer, body_offset: int, end: int, after: int, version: int) -> FetchHead:
    """The head of the ShareFetch request (KIP-932) with its body at `body_offset`. Share sessions have no id.

    The request ends at `after`. Raises `Incomplete` if the head continues behind `end`, and `InvalidFrame`.
    """
    reader = Reader(buf, body_offset, end, after, compact=True)
    reader.skip_string()  # the group
    reader.skip_string()  # the member
    epoch = reader.int32()
    at = reader.pos
    max_wait, min_bytes, max_bytes = reader.int32(), reader.int32(), reader.int32()
    records = reader.skip(INT32.size) if version >= _SHARE_RECORDS_SINCE else -1
    renews = False
    if version >= _SHARE_RENEW_SINCE:
        reader.skip(_SHARE_BATCH_BYTES)
        renews = reader.byte() != 0
    return FetchHead(
        at, at + 4, at + 8, max_wait, min_bytes, max_bytes, 0, epoch, has_topics=True, max_records_offset=records, renews=renews
    )


def _peek_sessionless(buf: Buffer, at: int, end: int, version: int) -> FetchHead:
    topics = at + 8 + 4 * (version >= _MAX_BYTES_SINCE) + (version >= _ISOLATION_SINCE)
    if topics + 4 > end:
        raise Incomplete
    max_wait, min_bytes = _TWO_INTS.unpack_from(buf, at)
    max_bytes_offset, max_bytes = -1, _NO_MAX_BYTES
    if version >= _MAX_BYTES_SINCE:
        max_bytes_offset = at + 8
        max_bytes = INT32.unpack_from(buf, max_bytes_offset)[0]
    has_topics = INT32.unpack_from(buf, topics)[0] > 0
    return FetchHead(at, at + 4, max_bytes_offset, max_wait, min_bytes, max_bytes, 0, -1, has_topics=has_topics)


def empty_response(version: int, correlation_id: int, session_id: int, throttle_ms: int, error_code: int = 0) -> bytes:
    """A response frame without partitions, as a broker sends it to a client over its quota (KIP-219)."""
    body = bytearray(INT32.pack(correlation_id))
    if version >= FLEXIBLE_SINCE:
        body.append(0)
    if version >= 1:
        body += INT32.pack(throttle_ms)
    if version >= SESSION_SINCE:
        body += INT16.pack(error_code) + INT32.pack(session_id)
    body += b"\x01\x00" if version >= FLEXIBLE_SINCE else INT32.pack(0)
    return INT32.pack(len(body)) + bytes(body)


def top_level_error(buf: Buffer, start: int, end: int, version: int) -> int:
    """The response's error code, or 0 up to v6, which has none.

    `buf[start]` is the first byte of the length field. Raises `Incomplete` if the code lies behind `end`, `InvalidFrame` if
    the frame is too short for it.
    """
    if version < SESSION_SINCE:
        return 0
    reader = Reader.of_response(buf, start, end, header_version=int(version >= FLEXIBLE_SINCE))
    reader.skip(4)
    return reader.int16()


def acquisition_lock_ms(buf: Buffer, start: int, end: int, version: int) -> int:
    """The time for which the records of the ShareFetch response at `start` are locked; 0 for an error, and up to v0.

    Raises `Incomplete` if it lies behind `end`, `InvalidFrame` if the frame is too short for it.
    """
    reader = Reader.of_response(buf, start, end, header_version=1)
    reader.skip(INT32.size)  # the throttle time
    if reader.int16() != 0 or version < _SHARE_LOCK_SINCE:
        return 0
    reader.skip_string()  # the error message
    return reader.int32()


def find_records(buf: Buffer, start: int, end: int, version: int) -> int:
    """The offset of the first record batch of the response at `start`, or -1 if it is not before `end`.

    Invalid bytes never raise.
    """
    try:
        reader = Reader.of_response(buf, start, end, header_version=int(version >= FLEXIBLE_SINCE))
        return _first_records(reader, version)
    except (Incomplete, InvalidFrame):
        return -1


def batch_size(buf: Buffer, at: int, end: int) -> int:
    """The size in bytes of the record batch at `at` (from `find_records`), or 0 if its length is not before `end`.

    A broker returns at least one batch even if max_bytes is smaller. So the gateway must let this many bytes through at
    once. The size includes the base offset and length fields (12 + batchLength). Invalid bytes never raise.
    """
    if at < 0 or end - at < _BATCH_PREFIX_BYTES:
        return 0
    batch_length: int = INT32.unpack_from(buf, at + _BATCH_LENGTH_AT)[0]
    return _BATCH_PREFIX_BYTES + batch_length if batch_length > 0 else 0


def _first_records(reader: Reader, version: int) -> int:
    for _ in range(topic_count(reader, version)):
        for _ in range(partition_count(reader, version)):
            high_watermark(reader, version)
            size = reader.size(wide=True)
            if size >= _BATCH_PREFIX_BYTES:
                return reader.pos
            reader.skip(max(size, 0))
            reader.skip_tags()
        reader.skip_tags()
    return -1


def idle_partitions(frame: bytes, version: int) -> bytes:
    """The whole response frame without the partitions that have records; the others keep all of their fields.

    Empty if no partition is left, and for invalid bytes.
    """
    try:
        reader = Reader.of_whole_response(frame, header_version=int(version >= FLEXIBLE_SINCE))
        return _idle_partitions(reader, frame, version)
    except InvalidFrame:
        return b""


def _idle_partitions(reader: Reader, frame: bytes, version: int) -> bytes:
    compact = reader.compact
    reader.skip(_head_bytes(version))
    head = frame[LENGTH_BYTES : reader.pos]
    topics: list[bytes] = []
    for _ in range(reader.count()):
        start = reader.pos
        _skip_topic(reader, version)
        name = frame[start : reader.pos]
        idle: list[bytes] = []
        for _ in range(reader.count()):
            start = reader.pos
            high_watermark(reader, version)
            size = reader.size(wide=True)
            reader.skip(max(size, 0))
            reader.skip_tags()
            if size < _BATCH_PREFIX_BYTES:
                idle.append(frame[start : reader.pos])
        start = reader.pos
        reader.skip_tags()
        if idle:
            topics.append(b"".join((name, array_count(len(idle), compact=compact), *idle, frame[start : reader.pos])))
    start = reader.pos
    reader.skip_tags()
    if not topics:
        return b""
    body = b"".join((head, array_count(len(topics), compact=compact), *topics, frame[start:]))
    return INT32.pack(len(body)) + body


def _head_bytes(version: int) -> int:
    """The bytes of a response's body before its topics."""
    return 4 * (version >= 1) + 6 * (version >= SESSION_SINCE)


def topic_count(reader: Reader, version: int) -> int:
    """Read the body of a response up to its first topic."""
    reader.skip(_head_bytes(version))
    return reader.count()


def partition_count(reader: Reader, version: int) -> int:
    """Read a response's topic up to its first partition."""
    _skip_topic(reader, version)
    return reader.count()


def _skip_topic(reader: Reader, version: int) -> None:
    if version >= _TOPIC_ID_SINCE:
        reader.skip(UUID_BYTES)
    else:
        reader.skip_string()


def high_watermark(reader: Reader, version: int) -> int:
    """Read the fields of a response's partition before its records."""
    at = reader.skip(14 + 8 * (version >= _ISOLATION_SINCE) + 8 * (version >= _LOG_START_SINCE)) + 6
    if version >= _ISOLATION_SINCE:
        for _ in range(reader.count()):
            reader.skip(_ABORTED_TRANSACTION_BYTES)
            reader.skip_tags()
    if version >= _PREFERRED_REPLICA_SINCE:
        reader.skip(4)
    offset: int = INT64.unpack_from(reader.buf, at)[0]
    return offset


def with_limits(
    data: bytes, start: int, end: int, head: FetchHead, *, max_wait: int, min_bytes: int, max_bytes: int, session_id: int = 0
) -> bytes:
    """A copy of `data[start:end]`, the Fetch request that has this head, with new limits (ms, bytes).

    A `session_id` other than 0 replaces the request's own, from v7 on.
    """
    changed = _limited(data, start, end, head, max_wait, min_bytes, max_bytes)
    if session_id != 0:
        INT32.pack_into(changed, head.max_wait_offset + _SESSION_ID_AT - start, session_id)
    return bytes(changed)


def without_records(data: bytes, start: int, end: int, head: FetchHead) -> bytes:
    """A copy of `data[start:end]`, the ShareFetch request with this head, of v1 or later, that acquires no records.

    The broker waits for none, takes its acknowledgements and moves the session's epoch on (`SharePartition.acquire`).
    """
    changed = _limited(data, start, end, head, 0, 0, 1)
    INT32.pack_into(changed, head.max_records_offset - start, 0)
    return bytes(changed)


def _limited(data: bytes, start: int, end: int, head: FetchHead, max_wait: int, min_bytes: int, max_bytes: int) -> bytearray:
    # Many requests may stand in one chunk: if each copied all of it, the chunk would cost the square of its length.
    changed = bytearray(data[start:end])
    INT32.pack_into(changed, head.max_wait_offset - start, max_wait)
    INT32.pack_into(changed, head.min_bytes_offset - start, min_bytes)
    if head.max_bytes_offset >= 0:
        INT32.pack_into(changed, head.max_bytes_offset - start, max_bytes)
    return changed
