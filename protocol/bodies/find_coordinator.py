"""FindCoordinator: the addresses of the coordinators of groups and transactions (``FindCoordinatorResponse.json``, v0-6).

A response has one coordinator up to v3, and an array from v4 (KIP-699). An unknown coordinator has node id -1, an empty host
and port -1.
"""

from typing import Final

from protocol.api_keys import APIS, ApiKey
from protocol.bodies.addresses import Translate
from protocol.cursor import INT16, INT32, Buffer, Reader
from protocol.encoding import encode_string, spliced
from protocol.error_codes import ErrorCode

MAX_KEYS: Final = 20_000
"""Per request. AdminClients ask for all groups of a call in one request. Its answer takes some 20 ms, interpreted."""

MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Per request, for `MAX_KEYS` names of 200 bytes. The broker's answer repeats the names, and Weir holds it whole."""

_SPEC: Final = APIS[ApiKey.FIND_COORDINATOR]
_ERROR_MESSAGE_SINCE: Final = 1
_ARRAY_SINCE: Final = 4
_NO_NODE: Final = INT32.pack(-1)
_NODE_BYTES: Final = 4
_MAX_ONE_BYTE_VARINT: Final = 0x7F
_VARINT_STEP: Final = 0x80


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
    compact = version >= _SPEC.flexible_since
    reader = Reader.of_whole_response(frame, header_version=int(compact))
    pieces = _Pieces(frame, translate, compact=compact)
    if version >= _SPEC.throttle_since:
        reader.skip(INT32.size)
    if version >= _ARRAY_SINCE:
        left = reader.count()
        while left > 0:
            left -= pieces.take_known(reader, left)
            if left > 0:
                pieces.take_element(reader)
                left -= 1
    else:
        error_at = reader.skip(INT16.size)
        if version >= _ERROR_MESSAGE_SINCE:
            reader.skip_string()
        start = _skip_address(reader)
        pieces.add_single(start, reader.pos, error_at)
    return spliced(frame, pieces.found)


def _skip_address(reader: Reader) -> int:
    """Skip a node id, host and port, and return the offset of the first."""
    start = reader.skip(INT32.size)
    reader.skip_string()
    reader.skip(INT32.size)
    return start


class _Pieces:
    """The changes of a frame, for `spliced`. Many keys share a coordinator, whose address is translated once.

    Elements of the array that have the same address and the same error are read once, too.
    """

    def __init__(self, frame: Buffer, translate: Translate, *, compact: bool) -> None:
        self.found: list[tuple[int, int, bytes]] = []
        self._frame = bytes(frame)
        self._translate = translate
        self._compact = compact
        self._known: dict[bytes, bytes] = {}  # old and new bytes of an address
        self._address_bytes: dict[bytes, int] = {}  # by node id
        self._rests: dict[bytes, tuple[bytes, bytes]] = {}  # by address and error: the element behind its key, old and new
        self._nowhere = _NO_NODE + encode_string("", compact=compact) + _NO_NODE

    def take_known(self, reader: Reader, most: int) -> int:
        """Take up to `most` elements of which all but the key is like an earlier one. Returns their number."""
        frame, pos, last = self._frame, reader.pos, len(self._frame) - 2
        address_bytes, rests, count = self._address_bytes, self._rests, 0
        while count < most and pos <= last:
            key = frame[pos]  # a compact length: one more than the bytes of the key
            if key > _MAX_ONE_BYTE_VARINT:
                high = frame[pos + 1]
                if not 0 < high <= _MAX_ONE_BYTE_VARINT:
                    break
                key += (high - 1) * _VARINT_STEP + 1
            start = pos + (key or 1)
            size = address_bytes.get(frame[start : start + _NODE_BYTES], 0)
            found = rests.get(frame[start : start + size + INT16.size])
            if found is None or not frame.startswith(found[0], start):
                break
            pos = start + len(found[0])
            if found[1] is not found[0]:
                self.found.append((start, pos, found[1]))
            count += 1
        reader.pos = pos
        return count

    def take_element(self, reader: Reader) -> None:
        """Translate the address of the next element of the array."""
        frame = self._frame
        reader.skip_string()  # the group or transactional id
        start = _skip_address(reader)
        end, error_end = reader.pos, reader.skip(INT16.size) + INT16.size
        reader.skip_string()  # error message
        reader.skip_tags()
        rest = changed = frame[start : reader.pos]
        old = frame[start:end]
        new = self._new_address(old)
        if new != old:
            changed = new + self._error(new, frame[end:error_end]) + frame[error_end : reader.pos]
            self.found.append((start, reader.pos, changed))
        self._address_bytes[rest[:_NODE_BYTES]] = end - start
        self._rests[frame[start:error_end]] = rest, changed

    def add_single(self, start: int, end: int, error_at: int) -> None:
        """Translate the address at `start` to `end`, which follows its error code at `error_at`."""
        old = self._frame[start:end]
        new = self._new_address(old)
        if new != old:
            error_end = error_at + INT16.size
            self.found.append((error_at, error_end, self._error(new, self._frame[error_at:error_end])))
            self.found.append((start, end, new))

    def _error(self, address: bytes, error: bytes) -> bytes:
        """The error code beside a new address. An unknown coordinator keeps its own."""
        return INT16.pack(ErrorCode.COORDINATOR_NOT_AVAILABLE) if address == self._nowhere else error

    def _new_address(self, old: bytes) -> bytes:
        new = self._known.get(old)
        if new is None:
            new = self._known[old] = self._translated(old)
        return new

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
