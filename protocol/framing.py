"""Where frames begin in a stream, whatever chunks it comes in.

A frame is a 4-byte length and as many bytes. Nothing is copied but the head of a frame that a chunk cuts off before it can be
read; the bodies of frames are only counted.
"""

from protocol.errors import InvalidFrame

MIN_REQUEST_BYTES = 8
"""api_key, api_version, correlation_id: the shortest request header (v0)."""

MIN_RESPONSE_BYTES = 4
"""correlation_id: the shortest response header (v0)."""

MAX_HEAD_BYTES = 256 * 1024
"""The most of a frame that is held until its head can be read: three strings of 32 KiB and tags are hostile already."""

_TLS_HANDSHAKE = 0x16


class Framing:
    """The position in one direction of a connection.

    `skip` is how many bytes of the current frame are still to come; `head` is the beginning of a frame that is too short to
    be read yet.
    """

    __slots__ = ("_max_bytes", "_min_bytes", "_wanted", "head", "skip")

    def __init__(self, *, min_bytes: int, max_bytes: int) -> None:
        self.skip = 0
        self.head = bytearray()
        self._wanted = 0
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes

    def join(self, chunk: bytes) -> bytes:
        """The chunk with the head that was held in front of it; b"" as long as both together are too short to be read."""
        if not self.head:
            return chunk
        self.head += chunk
        if len(self.head) < self._wanted:
            return b""
        chunk = bytes(self.head)
        self.head = bytearray()
        return chunk

    def hold(self, chunk: bytes | bytearray, start: int, wanted: int = 0) -> None:
        """Keep what begins at `start` until there is more of it, up to the offset `wanted` at least (`Incomplete.wanted`).

        Raises InvalidFrame if that is already so long that it can't be an honest head, or its length is out of bounds.
        """
        if len(chunk) - start >= 4:
            self.check(int.from_bytes(chunk[start : start + 4], "big", signed=True))
        if len(chunk) - start > MAX_HEAD_BYTES:
            raise InvalidFrame("head_too_long", f"the head of a frame is not over after {len(chunk) - start} bytes")
        self.head = bytearray(chunk[start:])
        self._wanted = wanted - start

    def check(self, size: int) -> None:
        """Raise InvalidFrame unless `size` (bytes, without the length field) is within bounds."""
        if self._min_bytes <= size <= self._max_bytes:
            return
        if size >> 24 == _TLS_HANDSHAKE:
            raise InvalidFrame("tls_on_plaintext", f"frame length {size}: TLS on a plaintext listener?")
        if size < 0:
            raise InvalidFrame("negative_length", f"frame length {size} is negative")
        if size < self._min_bytes:
            raise InvalidFrame("frame_too_short", f"frame length {size} is below the {self._min_bytes} bytes of a header")
        raise InvalidFrame(
            "frame_too_large",
            f"frame length {size} is above the limit of {self._max_bytes} bytes (connections.max_frame_bytes)",
        )
