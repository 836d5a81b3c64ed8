"""Finds the start of a response's node endpoints (KIP-951) as the bytes before them stream by.

Layouts: ``ProduceResponse.json`` v1-13, ``FetchResponse.json`` v16-18, ``ShareFetchResponse.json`` and
``ShareAcknowledgeResponse.json`` v0-2 of Kafka 4.3. All of these versions are flexible (KIP-482), except Produce before v9.
"""

from collections.abc import Callable, Generator
from typing import Final

from protocol.api_keys import ApiKey
from protocol.bodies import produce
from protocol.cursor import CORRELATION_BYTES, INT32, LENGTH_BYTES, THROTTLE_BYTES, UUID_BYTES, Buffer
from protocol.errors import InvalidFrame

_LEADER_BYTES: Final = 8
_ERROR_BYTES: Final = 2
_INDEX_AND_ERROR_BYTES: Final = 6
_THROTTLE_AND_ERROR_BYTES: Final = 6
_LOCK_TIMEOUT_BYTES: Final = 4

_FETCH_HEAD_BYTES: Final = 10  # throttle time, error, session id
_FETCH_PARTITION_BYTES: Final = 30  # index, error, high watermark, last stable offset, log start offset
_ABORTED_TRANSACTION_BYTES: Final = 16
_PREFERRED_REPLICA_BYTES: Final = 4
_ACQUIRED_RECORDS_BYTES: Final = 18

_BATCH_INDEX_BYTES: Final = 4
_ARRAY_BYTES: Final = 4
_STRING_BYTES: Final = 2
# The end of a plain result of Produce: no record errors, no error message and, in flexible versions, no tagged fields.
_COMPACT_PLAIN: Final = b"\1\0\0"
_PLAIN: Final = b"\0\0\0\0\xff\xff"
_NO_PLAIN: Final = b""  # before the record errors (v8)

# A result of ShareAcknowledge without an error message and without tagged fields.
_ACKNOWLEDGED_BYTES: Final = 17
_NO_TAGS_AT: Final = 15
_NO_LEADER_TAGS_AND_TAGS: Final = b"\0\0"

_MAX_VARINT_BYTES: Final = 5
_VARINT_BITS: Final = 32
_COMPACT_EMPTY: Final = 1

_Steps = Generator[None, None, None]
_Number = Generator[None, None, int]


class TailScanner:
    """Scans one response frame that arrives in chunks, and counts the bytes before the node endpoints' section.

    The section is the top-level tagged fields in Fetch (v16+), and the array NodeEndpoints in ShareFetch and
    ShareAcknowledge. In Produce (v1+) it begins with throttle_time_ms, which the top-level tagged fields follow (v9+). The
    scanner keeps no bytes; records cost one subtraction per chunk.
    """

    __slots__ = ("_compact", "_data", "_end", "_frame_left", "_pos", "_steps", "reached")

    def __init__(self, api_key: int, version: int) -> None:
        """Raises `KeyError` for any other API."""
        self.reached = False
        """True once the next byte, behind those that `feed` counted, is the section's first."""
        self._data: Buffer = b""
        self._pos = 0
        self._end = 0
        self._frame_left = LENGTH_BYTES
        self._compact = api_key != ApiKey.PRODUCE or version >= produce.FLEXIBLE_SINCE
        # Each walk reads as if the whole frame had arrived; at the end of a chunk it yields until the next one.
        self._steps = self._walk_frame(_WALKS[api_key], version)
        next(self._steps)

    def feed(self, data: Buffer, start: int, end: int) -> int:
        """The number of bytes of `data[start:end]` that precede the section: all until the section starts, then none.

        The first chunk starts with the frame's length. Raises `InvalidFrame` if a field exceeds the frame. The scanner must
        not be used after that.
        """
        if self.reached:
            return 0
        self._data, self._pos, self._end = data, start, end
        try:
            self._steps.send(None)
        except StopIteration:
            self.reached = True
        self._data = b""
        return self._pos - start

    def _walk_frame(self, walk_body: "Callable[[TailScanner, int], _Steps]", version: int) -> _Steps:
        yield  # until the first chunk
        if not self._skip_plain_header():
            yield from self._skip_header()
        yield from walk_body(self, version)
        if self._frame_left == 0:
            raise InvalidFrame("overrun", "the frame ends before its tagged fields")

    def _skip_header(self) -> _Steps:
        length = 0
        for _ in range(LENGTH_BYTES):
            length = length << 8 | (yield from self._byte())
        if length >> 31:
            raise InvalidFrame("bad_length", f"frame length {length - 2**32} is negative")
        self._frame_left = length
        yield from self._skip(CORRELATION_BYTES)
        if self._compact:
            yield from self._skip_tags()

    def _skip_plain_header(self) -> bool:
        """Fast path of `_skip_header` for a complete header without tagged fields.

        Returns False, and changes nothing, for any other header.
        """
        data, pos = self._data, self._pos
        after = pos + LENGTH_BYTES + CORRELATION_BYTES + 1
        if not self._compact or after > self._end or data[after - 1] != 0:
            return False
        length: int = INT32.unpack_from(data, pos)[0]
        if length <= CORRELATION_BYTES:
            return False
        self._frame_left = length - CORRELATION_BYTES - 1
        self._pos = after
        return True

    def _walk_produce(self, version: int) -> _Steps:
        fixed = produce.partition_bytes(version)
        has_errors = version >= produce.RECORD_ERRORS_SINCE
        plain = _NO_PLAIN if not has_errors else _COMPACT_PLAIN if self._compact else _PLAIN
        for _ in range((yield from self._array())):
            if version >= produce.TOPIC_ID_SINCE:
                yield from self._skip(UUID_BYTES)
            else:
                yield from self._skip_string()
            left = yield from self._array()
            while left > 0:
                left -= self._skip_plain_results(left, fixed, plain)
                if left > 0:
                    yield from self._skip_result(fixed, has_errors)
                    left -= 1
            if self._compact:
                yield from self._skip_tags()
        if self._frame_left < THROTTLE_BYTES + self._compact:
            raise InvalidFrame("overrun", "the frame ends before its throttle time or its tagged fields")

    def _skip_plain_results(self, most: int, fixed: int, plain: bytes) -> int:
        """Fast path of `_skip_result` for up to `most` complete results that end with `plain`. Returns their number."""
        size = fixed + len(plain)
        most = min(most, min(self._end - self._pos, self._frame_left) // size)
        data, at, end = self._data, self._pos + fixed, self._pos + size
        count = 0
        while count < most and data[at:end] == plain:
            count += 1
            at += size
            end += size
        self._pos += count * size
        self._frame_left -= count * size
        return count

    def _skip_result(self, fixed: int, has_errors: bool) -> _Steps:
        yield from self._skip(fixed)
        if has_errors:
            for _ in range((yield from self._array())):
                yield from self._skip(_BATCH_INDEX_BYTES)
                yield from self._skip_string()
                if self._compact:
                    yield from self._skip_tags()
            yield from self._skip_string()
        if self._compact:
            yield from self._skip_tags()

    def _walk_fetch(self, _version: int) -> _Steps:
        yield from self._skip(_FETCH_HEAD_BYTES)
        for _ in range((yield from self._count())):
            yield from self._skip(UUID_BYTES)
            for _ in range((yield from self._count())):
                if not self._skip_plain_partition():
                    yield from self._skip_partition()
            yield from self._skip_tags()

    def _skip_partition(self) -> _Steps:
        yield from self._skip(_FETCH_PARTITION_BYTES)
        for _ in range((yield from self._count())):
            yield from self._skip(_ABORTED_TRANSACTION_BYTES)
            yield from self._skip_tags()
        yield from self._skip(_PREFERRED_REPLICA_BYTES)
        yield from self._skip_counted()  # records
        yield from self._skip_tags()

    def _skip_plain_partition(self) -> bool:
        """Fast path of `_skip_partition` for a complete partition without aborted transactions and tagged fields.

        Nearly all partitions are like this. Returns False, and changes nothing, for any other partition.
        """
        data, pos = self._data, self._pos + _FETCH_PARTITION_BYTES
        if pos + 1 + _PREFERRED_REPLICA_BYTES + _MAX_VARINT_BYTES > self._end or data[pos] > _COMPACT_EMPTY:
            return False
        pos += 1 + _PREFERRED_REPLICA_BYTES
        size = data[pos]
        pos += 1
        if size >= 0x80:
            size &= 0x7F
            shift = 7
            while data[pos] >= 0x80 and shift < _VARINT_BITS - 7:
                size |= (data[pos] & 0x7F) << shift
                shift += 7
                pos += 1
            size |= data[pos] << shift
            pos += 1
        pos += max(size - 1, 0)
        taken = pos + 1 - self._pos
        if pos >= self._end or data[pos] != 0 or taken > self._frame_left:
            return False
        self._frame_left -= taken
        self._pos = pos + 1
        return True

    def _walk_share_fetch(self, version: int) -> _Steps:
        yield from self._skip(_THROTTLE_AND_ERROR_BYTES)
        yield from self._skip_counted()  # error message
        if version >= 1:
            yield from self._skip(_LOCK_TIMEOUT_BYTES)
        for _ in range((yield from self._count())):
            yield from self._skip(UUID_BYTES)
            for _ in range((yield from self._count())):
                yield from self._skip(_INDEX_AND_ERROR_BYTES)
                yield from self._skip_counted()  # error message
                yield from self._skip(_ERROR_BYTES)
                yield from self._skip_counted()  # acknowledgement's error message
                yield from self._skip(_LEADER_BYTES)
                yield from self._skip_tags()  # the leader's
                yield from self._skip_counted()  # records
                for _ in range((yield from self._count())):
                    yield from self._skip(_ACQUIRED_RECORDS_BYTES)
                    yield from self._skip_tags()
                yield from self._skip_tags()
            yield from self._skip_tags()

    def _walk_share_acknowledge(self, version: int) -> _Steps:
        yield from self._skip(_THROTTLE_AND_ERROR_BYTES)
        yield from self._skip_counted()  # error message
        if version >= 2:
            yield from self._skip(_LOCK_TIMEOUT_BYTES)
        for _ in range((yield from self._count())):
            yield from self._skip(UUID_BYTES)
            left = yield from self._count()
            while left > 0:
                left -= self._skip_plain_acknowledged(left)
                if left > 0:
                    yield from self._skip(_INDEX_AND_ERROR_BYTES)
                    yield from self._skip_counted()  # error message
                    yield from self._skip(_LEADER_BYTES)
                    yield from self._skip_tags()  # the leader's
                    yield from self._skip_tags()
                    left -= 1
            yield from self._skip_tags()

    def _skip_plain_acknowledged(self, most: int) -> int:
        """Skip up to `most` complete results of ShareAcknowledge without a message and tagged fields. Returns their number."""
        most = min(most, min(self._end - self._pos, self._frame_left) // _ACKNOWLEDGED_BYTES)
        data, pos = self._data, self._pos
        count = 0
        while (
            count < most
            and data[pos + _INDEX_AND_ERROR_BYTES] <= _COMPACT_EMPTY
            and data[pos + _NO_TAGS_AT : pos + _ACKNOWLEDGED_BYTES] == _NO_LEADER_TAGS_AND_TAGS
        ):
            count += 1
            pos += _ACKNOWLEDGED_BYTES
        self._pos = pos
        self._frame_left -= count * _ACKNOWLEDGED_BYTES
        return count

    def _skip(self, size: int) -> _Steps:
        if size > self._frame_left:
            raise InvalidFrame("overrun", f"a field of {size} bytes, but the frame has only {self._frame_left} left")
        self._frame_left -= size
        while size > (here := self._end - self._pos):
            size -= here
            self._pos = self._end
            yield
        self._pos += size

    def _byte(self) -> _Number:
        if self._frame_left < 1:
            raise InvalidFrame("overrun", "the frame ends before a field")
        self._frame_left -= 1
        while self._pos >= self._end:
            yield
        self._pos += 1
        return self._data[self._pos - 1]

    def _uvarint(self) -> _Number:
        value = 0
        for index in range(_MAX_VARINT_BYTES):
            part = yield from self._byte()
            value |= (part & 0x7F) << 7 * index
            if part < 0x80:
                if value >> _VARINT_BITS:
                    break
                return value
        raise InvalidFrame("bad_varint", "a varint is longer than 32 bits")

    def _count(self) -> _Number:
        """A compact length or count; 0 for null."""
        pos = self._pos
        if pos < self._end and self._data[pos] < 0x80 and self._frame_left > 0:  # nearly always
            self._pos += 1
            self._frame_left -= 1
            count = self._data[pos] - 1
        else:
            count = (yield from self._uvarint()) - 1
        if count > self._frame_left:
            raise InvalidFrame("bad_count", f"a count of {count}, but the frame has only {self._frame_left} bytes left")
        return max(count, 0)

    def _array(self) -> _Number:
        """The number of elements of an array; 0 for null."""
        return (yield from self._count()) if self._compact else (yield from self._plain_count(_ARRAY_BYTES))

    def _skip_string(self) -> _Steps:
        size = (yield from self._count()) if self._compact else (yield from self._plain_count(_STRING_BYTES))
        yield from self._skip(size)

    def _plain_count(self, size: int) -> _Number:
        """A length or count of a version without compact fields, in `size` bytes; 0 for null."""
        count = 0
        for _ in range(size):
            count = count << 8 | (yield from self._byte())
        if count == (1 << 8 * size) - 1:
            return 0
        if count > self._frame_left or count >> 8 * size - 1:
            raise InvalidFrame("bad_count", f"a count of {count}, but the frame has only {self._frame_left} bytes left")
        return count

    def _skip_counted(self) -> _Steps:
        yield from self._skip((yield from self._count()))

    def _skip_tags(self) -> _Steps:
        pos = self._pos
        if pos < self._end and self._data[pos] == 0 and self._frame_left > 0:  # nearly always
            self._pos += 1
            self._frame_left -= 1
            return
        count = yield from self._uvarint()
        if count > self._frame_left:
            raise InvalidFrame("bad_count", f"{count} tagged fields, but the frame has only {self._frame_left} bytes left")
        for _ in range(count):
            yield from self._uvarint()
            yield from self._skip((yield from self._uvarint()))


# Every walk ends at the first byte of the endpoints' section.
_WALKS: Final[dict[int, Callable[[TailScanner, int], _Steps]]] = {
    ApiKey.PRODUCE: TailScanner._walk_produce,
    ApiKey.FETCH: TailScanner._walk_fetch,
    ApiKey.SHARE_FETCH: TailScanner._walk_share_fetch,
    ApiKey.SHARE_ACKNOWLEDGE: TailScanner._walk_share_acknowledge,
}
