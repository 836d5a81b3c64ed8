"""Encodes single fields, as `Reader` decodes them, and replaces parts of a frame.

With `compact`, lengths are varints (KIP-482).
"""

from collections.abc import Iterable

from protocol.cursor import INT16, INT32, MAX_STRING_BYTES, Buffer
from protocol.errors import InvalidFrame


def spliced(frame: Buffer, pieces: Iterable[tuple[int, int, bytes]]) -> bytes:
    """`frame` with new bytes for each (start, end, new bytes), and with its length field updated.

    The pieces must be in ascending order.
    """
    view = memoryview(frame)
    parts: list[Buffer] = [b""]
    pos = INT32.size
    for start, end, new in pieces:
        parts += (view[pos:start], new)
        pos = end
    parts.append(view[pos:])
    parts[0] = INT32.pack(sum(map(len, parts)))
    return b"".join(parts)


def encode_uvarint(value: int) -> bytes:
    """`value` as an unsigned varint of minimal length."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def array_count(count: int, *, compact: bool) -> bytes:
    return encode_uvarint(count + 1) if compact else INT32.pack(count)


def encode_string(text: str, *, compact: bool) -> bytes:
    """A string that is not null. Raises `InvalidFrame` above 32767 bytes of UTF-8."""
    data = text.encode()
    if len(data) > MAX_STRING_BYTES:
        raise InvalidFrame("bad_count", f"a string of {len(data)} bytes exceeds Kafka's limit of {MAX_STRING_BYTES}")
    return encode_utf8(data, compact=compact)


def encode_nullable_string(text: str | None, *, compact: bool) -> bytes:
    if text is not None:
        return encode_string(text, compact=compact)
    return b"\0" if compact else INT16.pack(-1)


def encode_message(text: str | None, *, compact: bool) -> bytes:
    """A message for users, cut to Kafka's limit for strings. It may repeat a text of the client's that is as long."""
    if text is not None:
        text = text.encode()[:MAX_STRING_BYTES].decode(errors="ignore")
    return encode_nullable_string(text, compact=compact)


def encode_utf8(data: bytes, *, compact: bool) -> bytes:
    """A string whose UTF-8 is `data`."""
    return (encode_uvarint(len(data) + 1) if compact else INT16.pack(len(data))) + data
