"""A bounds-checked reader for one frame, which may have arrived only in part.

A read beyond the frame's end raises `InvalidFrame`: the peer sent a wrong length. A read beyond the bytes that have arrived
raises `Incomplete`: the caller waits for more bytes.
"""

import sys
from struct import Struct
from typing import Final

from protocol.errors import Incomplete, InvalidFrame

Buffer = bytes | bytearray | memoryview

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
INT64: Final = Struct(">q")
LENGTH_BYTES: Final = 4
"""Size of the length field that precedes every frame."""
CORRELATION_BYTES: Final = 4
THROTTLE_BYTES: Final = 4
UUID_BYTES: Final = 16
MAX_ELEMENTS: Final = 5_000
"""Limit on all array elements and tagged fields of one request. The gateway decodes and answers that many in up to 50 ms."""
MAX_REPEATED_CHARACTERS: Final = 256 * 1024
"""The most characters of one message in all results of an answer. If there were more, only the first result has the message."""
_VARINT_BITS: Final = 32
MAX_STRING_BYTES: Final = 2**15 - 1
"""Kafka's limit for the UTF-8 of a string."""
_REPLACEMENT_BYTES: Final = 3  # the UTF-8 of U+FFFD, which replaces one byte or more


class Reader:
    """Reads `buf` from `pos`. The bytes before `seen` have arrived; the frame ends at `end` (absolute offsets).

    With `compact`, lengths are varints and structs end with tagged fields (KIP-482).

    `elements_left` limits the array elements and tagged fields that the caller may still read. One element can be as short
    as one byte, but costs a few microseconds.
    """

    __slots__ = ("buf", "compact", "elements_left", "end", "pos", "seen")

    def __init__(self, buf: Buffer, pos: int, seen: int, end: int, *, compact: bool = False) -> None:
        self.buf = buf
        self.pos = pos
        self.seen = seen
        self.end = end
        self.compact = compact
        self.elements_left = sys.maxsize

    @classmethod
    def of_frame(cls, frame: Buffer, start: int, seen: int) -> "Reader":
        """Returns a reader that stands behind the 4-byte length field at `start`."""
        if seen - start < LENGTH_BYTES:
            raise Incomplete
        length: int = INT32.unpack_from(frame, start)[0]
        if length < CORRELATION_BYTES:
            raise InvalidFrame("bad_length", f"frame length {length} is below a header's {CORRELATION_BYTES} bytes")
        end = start + LENGTH_BYTES + length
        return cls(frame, start + LENGTH_BYTES, min(seen, end), end)

    @classmethod
    def of_whole_request(cls, frame: Buffer, body_offset: int, *, compact: bool) -> "Reader":
        """Returns a reader of a request's body, which ends with `frame` and has at most `MAX_ELEMENTS` elements."""
        reader = cls(frame, body_offset, len(frame), len(frame), compact=compact)
        reader.elements_left = MAX_ELEMENTS
        return reader

    @classmethod
    def of_response(cls, frame: Buffer, start: int, seen: int, *, header_version: int) -> "Reader":
        """Returns a reader that stands at the body of the response frame at `start`. The body is `compact` if the header has
        tagged fields (version 1)."""
        reader = cls.of_frame(frame, start, seen)
        reader.skip(CORRELATION_BYTES)
        reader.compact = header_version >= 1
        reader.skip_tags()
        return reader

    @classmethod
    def of_whole_response(cls, frame: Buffer, *, header_version: int) -> "Reader":
        """Like `of_response`, for a buffer that holds exactly one frame. Later reads never raise `Incomplete`."""
        if len(frame) < LENGTH_BYTES or INT32.unpack_from(frame, 0)[0] != len(frame) - LENGTH_BYTES:
            raise InvalidFrame("bad_length", f"the length field does not match the {len(frame)} bytes of the frame")
        return cls.of_response(frame, 0, len(frame), header_version=header_version)

    def skip(self, size: int) -> int:
        """Skip `size` >= 0 bytes and return the offset of the first."""
        pos = self.pos
        after = pos + size
        if after > self.seen:
            self._overrun(after)
        self.pos = after
        return pos

    def _overrun(self, after: int) -> None:
        if after > self.end:
            raise InvalidFrame("overrun", f"a field ends at byte {after}, {after - self.end} beyond its frame")
        raise Incomplete(after)

    def bytes_field(self) -> bytes:
        """A byte string; empty for null."""
        return self.take(max(self.size(wide=True), 0))

    def take(self, size: int) -> bytes:
        start = self.skip(size)
        return bytes(self.buf[start : start + size])

    def byte(self) -> int:
        return self.buf[self.skip(1)]

    def int16(self) -> int:
        value: int = INT16.unpack_from(self.buf, self.skip(2))[0]
        return value

    def int32(self) -> int:
        value: int = INT32.unpack_from(self.buf, self.skip(4))[0]
        return value

    def uvarint(self) -> int:
        """An unsigned varint: at most 5 bytes and 32 bits."""
        value = self.byte()
        if value < 0x80:
            return value
        value &= 0x7F
        for shift in range(7, _VARINT_BITS + 3, 7):
            part = self.byte()
            value |= (part & 0x7F) << shift
            if part < 0x80:
                if value >> _VARINT_BITS:
                    break
                return value
        raise InvalidFrame("bad_varint", f"the varint before byte {self.pos} is longer than 32 bits")

    def size(self, *, wide: bool) -> int:
        """The length of a string, byte string or array; -1 for null.

        A compact length is an unsigned varint of length + 1. Without `compact`, `wide` selects 32 bits (arrays, byte strings)
        instead of 16 bits (strings). Raises `InvalidFrame` if the length exceeds the bytes left in the frame, or Kafka's 32767
        for strings. So the caller never waits for a string that is too long.
        """
        count = self.uvarint() - 1 if self.compact else self.int32() if wide else self.int16()
        if count < -1 or count > self.end - self.pos or (count > MAX_STRING_BYTES and not wide):
            raise InvalidFrame("bad_count", f"a count of {count}, but the frame has only {self.end - self.pos} bytes left")
        return count

    def count(self) -> int:
        """The number of elements of an array; 0 for null. Raises `InvalidFrame` if it exceeds `elements_left`."""
        count = max(self.size(wide=True), 0)
        self.spend(count)
        return count

    def length(self, *, wide: bool) -> int:
        """As `size`, of a field that may not be null. Raises `InvalidFrame` for null."""
        length = self.size(wide=wide)
        if length < 0:
            raise InvalidFrame("bad_count", f"the field before byte {self.pos} is null, and may not be")
        return length

    def spend(self, elements: int) -> None:
        """Subtract `elements` from `elements_left`. Raises `InvalidFrame` if `elements_left` is lower."""
        self.elements_left -= elements
        if self.elements_left < 0:
            left = self.elements_left + elements
            raise InvalidFrame(
                "too_many_elements",
                f"an array of {elements} elements, but this request may have only {left} more: send several requests",
            )

    def skip_string(self) -> None:
        size = self.size(wide=False)
        if size > 0:
            self.skip(size)

    def skip_bytes(self) -> None:
        size = self.size(wide=True)
        if size > 0:
            self.skip(size)

    def skip_int32s(self) -> None:
        """Skip an array of 32-bit integers."""
        self.skip(INT32.size * max(self.size(wide=True), 0))

    def string(self) -> str | None:
        """A string or None. Bytes that are not UTF-8 are replaced.

        Raises `InvalidFrame` if the string is then too long for Kafka. So every message can repeat the string.
        """
        size = self.size(wide=False)
        if size < 0:
            return None
        start = self.skip(size)
        text = bytes(self.buf[start : start + size]).decode("utf-8", "replace")
        if size * _REPLACEMENT_BYTES > MAX_STRING_BYTES:
            encoded = len(text.encode())
            if encoded > MAX_STRING_BYTES:
                raise InvalidFrame(
                    "bad_count",
                    f"a string of {size} bytes is not UTF-8. As UTF-8 it has {encoded}, at most {MAX_STRING_BYTES} fit",
                )
        return text

    def skip_tags(self) -> None:
        """Skip a section of tagged fields. Without `compact` there is none."""
        if self.compact:
            for _ in range(self.tag_count()):
                self.uvarint()
                self.skip(self.uvarint())

    def tag_count(self) -> int:
        """Read the number of tagged fields in the section that starts here."""
        count = self.uvarint()
        if count > self.end - self.pos:
            raise InvalidFrame("bad_count", f"{count} tagged fields, but the frame has only {self.end - self.pos} bytes left")
        self.spend(count)
        return count
