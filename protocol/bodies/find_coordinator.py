"""FindCoordinator: the addresses of the coordinators of groups and transactions (``FindCoordinatorResponse.json``, v0-6).

A response has one coordinator up to v3, and an array from v4 (KIP-699). An unknown coordinator has node id -1, an empty host
and port -1.
"""

from typing import Final

from protocol.bodies.addresses import Translate
from protocol.cursor import INT16, INT32, Buffer, Reader
from protocol.encoding import encode_string, spliced
from protocol.error_codes import ErrorCode

MAX_KEYS: Final = 20_000
"""Per request. AdminClients ask for all groups of a call in one request. Its answer takes some 0.1 s, interpreted."""

MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Per request, for `MAX_KEYS` names of 200 bytes. The broker's answer repeats the names, and Weir holds it whole."""

_THROTTLE_SINCE: Final = 1
_ERROR_MESSAGE_SINCE: Final = 1
_FLEXIBLE_SINCE: Final = 3
_ARRAY_SINCE: Final = 4
_NO_NODE: Final = INT32.pack(-1)


def check_request(version: int, buf: Buffer, body_offset: int, seen: int, frame_end: int) -> None:
    """Raises `InvalidFrame` for a request with so many keys that its response would be too expensive to rewrite.

    Raises `Incomplete` if the number of keys lies behind `seen`.
    """
    if version >= _ARRAY_SINCE:
        reader = Reader(buf, body_offset, seen, frame_end, compact=True)
        reader.elements_left = MAX_KEYS
        reader.byte()  # key_type
        reader.count()


def rewrite_response(version: int, frame: Buffer, translate: Translate) -> bytes:
    """The whole response frame with the coordinators' addresses translated.

    A coordinator that `translate` maps to None becomes unavailable: error code 15 and no node. Raises `InvalidFrame`.
    """
    compact = version >= _FLEXIBLE_SINCE
    reader = Reader.of_whole_response(frame, header_version=int(compact))
    pieces = _Pieces(frame, translate, compact=compact)
    if version >= _THROTTLE_SINCE:
        reader.skip(INT32.size)
    if version >= _ARRAY_SINCE:
        for _ in range(reader.count()):
            reader.skip_string()  # the group or transactional id
            start = _skip_address(reader)
            pieces.add(start, reader.pos, reader.skip(INT16.size))
            reader.skip_string()  # error message
            reader.skip_tags()
    else:
        error_at = reader.skip(INT16.size)
        if version >= _ERROR_MESSAGE_SINCE:
            reader.skip_string()
        start = _skip_address(reader)
        pieces.add(start, reader.pos, error_at)
    return spliced(frame, pieces.found)


def _skip_address(reader: Reader) -> int:
    """Skip a node id, host and port, and return the offset of the first."""
    start = reader.skip(INT32.size)
    reader.skip_string()
    reader.skip(INT32.size)
    return start


class _Pieces:
    """The changes of a frame, for `spliced`. Many keys share a coordinator, whose address is translated once."""

    def __init__(self, frame: Buffer, translate: Translate, *, compact: bool) -> None:
        self.found: list[tuple[int, int, bytes]] = []
        self._frame = frame
        self._translate = translate
        self._compact = compact
        self._known: dict[bytes, bytes] = {}  # old and new bytes of an address
        self._nowhere = _NO_NODE + encode_string("", compact=compact) + _NO_NODE

    def add(self, start: int, end: int, error_at: int) -> None:
        """Translate the address at `start` to `end`, of the coordinator whose error code is at `error_at`."""
        old = bytes(self._frame[start:end])
        new = self._known.get(old)
        if new is None:
            new = self._known[old] = self._translated(old)
        if new != old:
            self.found.append((start, end, new))
            if new == self._nowhere:
                error = (error_at, error_at + INT16.size, INT16.pack(ErrorCode.COORDINATOR_NOT_AVAILABLE))
                self.found.insert(len(self.found) - (error_at < start), error)

    def _translated(self, old: bytes) -> bytes:
        reader = Reader(old, 0, len(old), len(old), compact=self._compact)
        node_id, host, port = reader.int32(), reader.string(), reader.int32()
        if not host:
            return old
        address = self._translate(node_id, host, port)
        if address is None:
            return self._nowhere
        host, port = address
        return INT32.pack(node_id) + encode_string(host, compact=self._compact) + INT32.pack(port)
