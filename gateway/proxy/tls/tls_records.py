"""Divides a TLS peer's bytes into pieces for OpenSSL. It knows nothing of a record but its length."""

from typing import Final

MAX_RECORDS: Final = 256
"""The records that OpenSSL gets in one turn of the event loop. The connection's next records wait for the next turn.

A key update has 27 bytes and takes OpenSSL up to 45 us. A read of 64 KiB of them would delay all clients for 50 to 110 ms.
"""

MAX_REPLY_BYTES: Final = 16 * 1024
"""The limit on OpenSSL's replies to key updates, which wait for the next response under TLS 1.3. Without a limit, a client
could ask for new keys for ever. Under TLS 1.2, OpenSSL only writes for a renegotiation."""

RECORD_BYTES: Final = 16 * 1024
"""The most bytes in one TLS record."""

PIECE_BYTES: Final = 48 * 1024
"""A piece of large records has so many bytes, and the rest of its last record: some 64 KiB at most."""

MAX_SURPLUS_BYTES: Final = 64 * 1024
"""The limit on the bytes that a peer sends beyond `BYTES_PER_CONTENT` for each byte of content. Requests stay far below."""

BYTES_PER_CONTENT: Final = 32
"""More than the 23 bytes of a record with one byte of content."""

_HEADER_BYTES: Final = 5


class RecordCounter:
    """Follows the headers of a connection's records (RFC 8446, section 5.1), in any chunking."""

    __slots__ = ("_head", "_missing", "_surplus")

    def __init__(self) -> None:
        self._head = b""  # the beginning of a header that is cut
        self._missing = 0  # the bytes of the last record that are still to come
        self._surplus = 0

    def end(self, data: memoryview, begin: int) -> int:
        """The end of the next bytes for OpenSSL: `MAX_RECORDS` records, or at least `PIECE_BYTES`, or all of `data`."""
        size, pos, records = len(data), begin + self._missing, 0
        if self._head:
            wanted = _HEADER_BYTES - len(self._head)
            head = self._head + data[begin : begin + wanted]
            if len(head) < _HEADER_BYTES:
                self._head = head
                return size
            self._head = b""
            pos = begin + wanted + (head[3] << 8 | head[4])
        while pos - begin < PIECE_BYTES and records < MAX_RECORDS and pos + _HEADER_BYTES <= size:
            pos += _HEADER_BYTES + (data[pos + 3] << 8 | data[pos + 4])
            records += 1
        if pos >= size:
            self._missing = pos - size
            return size
        self._missing = 0
        if pos + _HEADER_BYTES > size:
            self._head = bytes(data[pos:])
            return size
        return pos

    def skip(self, data: memoryview) -> None:
        """Follow the records of a handshake."""
        end = 0
        while end < len(data):
            end = self.end(data, end)

    def have_little_content(self, size: int, content: int) -> bool:
        """True if the peer has sent too much without content. `size` bytes of records came, with `content` bytes in them."""
        self._surplus = max(0, self._surplus + size - BYTES_PER_CONTENT * content)
        return self._surplus > MAX_SURPLUS_BYTES
