"""Finds the frame boundaries in a byte stream, however the stream is split into chunks.

A frame is a 4-byte length and that many bytes. Only the head of an incomplete frame is copied; bodies are only counted.
"""

from protocol.errors import InvalidFrame

MIN_REQUEST_BYTES = 8
"""The shortest request header (v0): api_key, api_version, correlation_id."""

MIN_RESPONSE_BYTES = 4
"""The shortest response header (v0): correlation_id."""

MAX_HEAD_BYTES = 256 * 1024
"""Limit on the bytes kept of a frame with an incomplete head. No honest head needs three strings of 32 KiB and tags."""

_NO_HEAD = bytearray()
"""All connections share this empty head: no cache would hold one of each. It must stay empty."""

_TLS_HANDSHAKE = 0x16
_PROXY_HEADERS = frozenset((b"PROX", b"\r\n\r\n"))
_HTTP = frozenset((b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"CONN", b"PATC", b"TRAC", b"PRI ", b"HTTP"))
"""The first bytes of requests, of the preface of HTTP/2, and of answers."""


class Framing:
    """The position in one direction of a connection.

    `skip` is the number of missing bytes of the current frame. `head` holds the start of a frame that is still too short to
    decode.
    """

    __slots__ = ("_max_bytes", "_min_bytes", "_wanted", "head", "skip")

    def __init__(self, *, min_bytes: int, max_bytes: int) -> None:
        self.skip = 0
        self.head = _NO_HEAD
        self._wanted = 0
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes

    def join(self, chunk: bytes) -> bytes:
        """Prepend the held head to `chunk`. Returns b"" while both together are still too short to decode."""
        if not self.head:
            return chunk
        self.head += chunk
        if len(self.head) < self._wanted:
            return b""
        chunk = bytes(self.head)
        self.head = _NO_HEAD
        return chunk

    def hold(self, chunk: bytes | bytearray, start: int, wanted: int = 0) -> None:
        """Keep the bytes from `start` until the buffer reaches the offset `wanted` (`Incomplete.wanted`).

        Raises `InvalidFrame` if the head exceeds `MAX_HEAD_BYTES` or the frame's length is out of bounds.
        """
        if len(chunk) - start >= 4:
            self.check(int.from_bytes(chunk[start : start + 4], "big", signed=True))
        if len(chunk) - start > MAX_HEAD_BYTES:
            raise InvalidFrame("head_too_long", f"the head of a frame is still incomplete after {len(chunk) - start} bytes")
        self.head = bytearray(chunk[start:])
        self._wanted = wanted - start

    def check(self, size: int) -> None:
        """Raises `InvalidFrame` unless `size`, the frame's bytes without the length field, is within the bounds."""
        if self._min_bytes <= size <= self._max_bytes:
            return
        if size < 0:
            raise InvalidFrame("negative_length", f"frame length {size} is negative")
        first = size.to_bytes(4, "big")
        if first[0] == _TLS_HANDSHAKE:
            raise InvalidFrame("tls_on_plaintext", f"frame length {size}: TLS on a plaintext listener?")
        if first in _PROXY_HEADERS:
            raise InvalidFrame(
                "proxy_header",
                f"frame length {size}: a PROXY header instead of a request. Set the listener's proxy_protocol.mode, or let only"
                " one balancer send a header",
            )
        if first in _HTTP:
            raise InvalidFrame("http", f"frame length {size}: HTTP instead of Kafka's protocol. Use the admin port for HTTP")
        if size < self._min_bytes:
            raise InvalidFrame("frame_too_short", f"frame length {size} is below the {self._min_bytes} bytes of a header")
        raise InvalidFrame(
            "frame_too_large",
            f"frame length {size} is above the limit of {self._max_bytes} bytes (connections.max_frame_bytes)",
        )
