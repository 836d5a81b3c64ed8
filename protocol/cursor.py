"""A bounds-checked cursor over one frame, of which perhaps only the first part has arrived.

Every body module reads through it, except where a fixed offset is cheaper. Two bounds are kept apart: running over the
frame's end is the peer's fault (`InvalidFrame`), running over the bytes seen so far only means to wait (`Incomplete`).
"""

import sys
from struct import Struct
from typing import Final

from protocol.errors import Incomplete, InvalidFrame

Buffer = bytes | bytearray | memoryview

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
LENGTH_BYTES: Final = 4
"""Size of the length that stands before every frame."""
CORRELATION_BYTES: Final = 4
MAX_ELEMENTS: Final = 5_000
"""The most elements of all arrays of a request, and its tagged fields. To read and answer as many takes up to 50 ms."""
_VARINT_BITS: Final = 32
_MAX_STRING_BYTES: Final = 2**15 - 1


class Reader:
    """Reads `buf` from `pos` on; `seen` bounds the bytes that are there, `end` the frame (both absolute offsets).

    `elements_left` bounds the elements of all arrays and the tagged fields that are read one by one. An element takes as
    little as one byte, and a few microseconds.
    """

    __slots__ = ("buf", "elements_left", "end", "pos", "seen")

    def __init__(self, buf: Buffer, pos: int, seen: int, end: int) -> None:
        self.buf = buf
        self.pos = pos
        self.seen = seen
        self.end = end
        self.elements_left = sys.maxsize

    @classmethod
    def of_frame(cls, frame: Buffer, start: int, seen: int) -> "Reader":
        """A reader over the frame whose 4-byte length stands at `start`, placed behind that length."""
        if seen - start < LENGTH_BYTES:
            raise Incomplete
        length: int = INT32.unpack_from(frame, start)[0]
        if length < CORRELATION_BYTES:
            raise InvalidFrame("bad_length", f"frame length {length} is below a header's {CORRELATION_BYTES} bytes")
        end = start + LENGTH_BYTES + length
        return cls(frame, start + LENGTH_BYTES, min(seen, end), end)

    @classmethod
    def of_response(cls, frame: Buffer, start: int, seen: int, *, header_version: int) -> "Reader":
        """A reader over the response frame at `start`, placed at its body."""
        reader = cls.of_frame(frame, start, seen)
        reader.skip(CORRELATION_BYTES)
        if header_version >= 1:
            reader.skip_tags()
        return reader

    @classmethod
    def of_whole_response(cls, frame: Buffer, *, header_version: int) -> "Reader":
        """Like `of_response` for a buffer that holds exactly one whole frame; never `Incomplete` from here on."""
        if len(frame) < LENGTH_BYTES or INT32.unpack_from(frame, 0)[0] != len(frame) - LENGTH_BYTES:
            raise InvalidFrame("bad_length", f"{len(frame)} bytes are not one frame: its length field says otherwise")
        return cls.of_response(frame, 0, len(frame), header_version=header_version)

    def skip(self, size: int) -> int:
        """Step over `size` >= 0 bytes that must be there; returns where they began."""
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

    def take(self, size: int) -> bytes:
        """A copy of the next `size` bytes."""
        start = self.skip(size)
        return bytes(self.buf[start : start + size])

    def byte(self) -> int:
        """An unsigned byte."""
        return self.buf[self.skip(1)]

    def int16(self) -> int:
        """A signed 16-bit integer."""
        value: int = INT16.unpack_from(self.buf, self.skip(2))[0]
        return value

    def int32(self) -> int:
        """A signed 32-bit integer."""
        value: int = INT32.unpack_from(self.buf, self.skip(4))[0]
        return value

    def uvarint(self) -> int:
        """An unsigned varint of at most 5 bytes and 32 bits."""
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

    def size(self, *, compact: bool, wide: bool) -> int:
        """The length of a string, byte string or array; -1 is null.

        Compact ones are an unsigned varint of length + 1; otherwise `wide` tells the 32-bit form (arrays, bytes) from
        the 16-bit one (strings). Never more than the frame has bytes left, as no element is shorter than one byte, and
        for a string never more than Kafka's own 32767, so that nobody waits long for one.
        """
        count = self.uvarint() - 1 if compact else self.int32() if wide else self.int16()
        if count < -1 or count > self.end - self.pos or (count > _MAX_STRING_BYTES and not wide):
            raise InvalidFrame("bad_count", f"a count of {count} with {self.end - self.pos} bytes left in the frame")
        return count

    def count(self, *, compact: bool) -> int:
        """The number of an array's elements, 0 for null. Raises InvalidFrame for more than `elements_left`."""
        count = max(self.size(compact=compact, wide=True), 0)
        self.spend(count)
        return count

    def spend(self, elements: int) -> None:
        """Take so many elements off `elements_left`. Raises InvalidFrame where there are not as many."""
        self.elements_left -= elements
        if self.elements_left < 0:
            left = self.elements_left + elements
            raise InvalidFrame(
                "too_many_elements",
                f"an array of {elements} elements with {left} left of the {MAX_ELEMENTS} in a request: send several requests",
            )

    def skip_string(self, *, compact: bool) -> None:
        """Step over a string, null or not."""
        size = self.size(compact=compact, wide=False)
        if size > 0:
            self.skip(size)

    def skip_bytes(self, *, compact: bool) -> None:
        """Step over a byte string or records, null or not."""
        size = self.size(compact=compact, wide=True)
        if size > 0:
            self.skip(size)

    def string(self, *, compact: bool) -> str | None:
        """A string; bytes that are not UTF-8 are replaced rather than refused."""
        size = self.size(compact=compact, wide=False)
        if size < 0:
            return None
        start = self.skip(size)
        return bytes(self.buf[start : start + size]).decode("utf-8", "replace")

    def skip_tags(self) -> None:
        """Step over a tagged-field section (KIP-482), whatever is in it."""
        for _ in range(self.tag_count()):
            self.uvarint()
            self.skip(self.uvarint())

    def tag_count(self) -> int:
        """The number of tagged fields in the section that starts here."""
        count = self.uvarint()
        if count > self.end - self.pos:
            raise InvalidFrame("bad_count", f"{count} tagged fields with {self.end - self.pos} bytes left in the frame")
        self.spend(count)
        return count
