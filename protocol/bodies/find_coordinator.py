"""FindCoordinator: the addresses of the coordinators of groups and transactions (``FindCoordinatorResponse.json``, v0-6).

A response has one coordinator up to v3, and an array from v4 (KIP-699). An unknown coordinator has node id -1, an empty host
and port -1.
"""

from typing import Final, NamedTuple

from protocol.bodies import addresses
from protocol.bodies.addresses import Translate
from protocol.cursor import INT16, INT32, MAX_ELEMENTS, Buffer, Reader

COORDINATOR_NOT_AVAILABLE: Final = 15
"""Kafka's error code. Clients retry."""

_THROTTLE_SINCE: Final = 1
_ERROR_MESSAGE_SINCE: Final = 1
_FLEXIBLE_SINCE: Final = 3
_ARRAY_SINCE: Final = 4
_NO_NODE: Final = -1


class _Coordinator(NamedTuple):
    """A coordinator's address at `start` to `end` in the frame, and the offset of its error code."""

    node_id: int
    host: str
    port: int
    start: int
    end: int
    error_at: int


def check_request(version: int, buf: Buffer, body_offset: int, seen: int, frame_end: int) -> None:
    """Raises `InvalidFrame` for a request with so many keys that its response would be too expensive to rewrite.

    Raises `Incomplete` if the number of keys lies behind `seen`.
    """
    if version >= _ARRAY_SINCE:
        reader = Reader(buf, body_offset, seen, frame_end, compact=True)
        reader.elements_left = MAX_ELEMENTS
        reader.byte()  # key_type
        reader.count()


def rewrite_response(version: int, frame: Buffer, translate: Translate) -> bytes:
    """The whole response frame with the coordinators' addresses translated.

    A coordinator that `translate` maps to None becomes unavailable: error code 15 and no node. Raises `InvalidFrame`.
    """
    compact = version >= _FLEXIBLE_SINCE
    pieces: list[tuple[int, int, bytes]] = []
    for found in _scan(version, frame):
        if not found.host:
            continue
        address = translate(found.node_id, found.host, found.port)
        node_id, (host, port) = (found.node_id, address) if address else (_NO_NODE, ("", -1))
        new = INT32.pack(node_id) + addresses.encode_string(host, compact=compact) + INT32.pack(port)
        pieces.append((found.start, found.end, new))
        if not address:
            pieces.append((found.error_at, found.error_at + INT16.size, INT16.pack(COORDINATOR_NOT_AVAILABLE)))
    return addresses.spliced(frame, sorted(pieces))


def _scan(version: int, frame: Buffer) -> list[_Coordinator]:
    reader = Reader.of_whole_response(frame, header_version=int(version >= _FLEXIBLE_SINCE))
    if version >= _THROTTLE_SINCE:
        reader.skip(INT32.size)
    if version >= _ARRAY_SINCE:
        return [_read_element(reader) for _ in range(reader.count())]
    error_at = reader.skip(INT16.size)
    if version >= _ERROR_MESSAGE_SINCE:
        reader.skip_string()
    return [_read_address(reader)._replace(error_at=error_at)]


def _read_element(reader: Reader) -> _Coordinator:
    reader.skip_string()  # the group or transactional id
    found = _read_address(reader)._replace(error_at=reader.skip(INT16.size))
    reader.skip_string()  # error message
    reader.skip_tags()
    return found


def _read_address(reader: Reader) -> _Coordinator:
    start = reader.pos
    node_id = reader.int32()
    host = reader.string()
    port = reader.int32()
    return _Coordinator(node_id, host or "", port, start, reader.pos, -1)
