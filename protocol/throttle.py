"""Finds, reads and writes throttle_time_ms in a response (KIP-124, KIP-219).

In most responses the field is at a fixed offset (`ApiSpec.throttle_place`). In four APIs the earlier fields have a variable
length and must be decoded. An offset counted from the frame's end would break as soon as a broker adds a tagged field.
"""

from collections.abc import Callable
from typing import Final

from protocol.api_keys import APIS, NEVER, WALK, ApiKey
from protocol.bodies import produce
from protocol.bodies.tail_scanner import TailScanner
from protocol.cursor import CORRELATION_BYTES, INT32, LENGTH_BYTES, THROTTLE_BYTES, Buffer, Reader
from protocol.error_codes import ErrorCode
from protocol.errors import Incomplete

MAX_THROTTLE_MS: Final = 2**31 - 1
_ERROR_BYTES: Final = 2
_TIMESTAMPS_BYTES: Final = 24  # issue, expiry and max timestamp
_TOKEN_REQUESTER_SINCE: Final = 3
_API_VERSION_BYTES: Final = 6

# Per key: (first version with the field, first version whose response header has tags, offset in the body or WALK).
_PLACES: Final = {
    key: (spec.throttle_since, NEVER if key == ApiKey.API_VERSIONS else spec.flexible_since, spec.throttle_place)
    for key, spec in APIS.items()
}


def throttle_offset(api_key: int, version: int, frame: Buffer, start: int, end: int) -> int:
    """The absolute offset of throttle_time_ms in the response at `start`, or -1 if this version has none.

    `frame[start]` is the first byte of the length field; the bytes before `end` have arrived. For most APIs 14 bytes
    suffice. Raises `Incomplete` if the field lies behind `end`, `InvalidFrame` if it lies outside the frame, and `KeyError`
    for an unknown API key.
    """
    since, tags_since, place = _PLACES[api_key]
    if version < since:
        return -1
    offset = start + LENGTH_BYTES + CORRELATION_BYTES
    if api_key == ApiKey.PRODUCE:
        offset = produce.single_partition_throttle(frame, start, end, version)
    elif place == WALK or offset >= end:
        offset = -1
    elif version < tags_since:
        offset += place
    else:
        offset = offset + 1 + place if frame[offset] == 0 else -1
    if offset >= 0:
        after = offset + THROTTLE_BYTES
        if after <= end and after - start - LENGTH_BYTES <= INT32.unpack_from(frame, start)[0]:
            return offset
    return _walk(api_key, version, frame, start, end)


def _walk(api_key: int, version: int, frame: Buffer, start: int, end: int) -> int:
    if api_key == ApiKey.PRODUCE:
        return _walk_produce(version, frame, start, end)
    _, tags_since, place = _PLACES[api_key]
    reader = Reader.of_response(frame, start, end, header_version=int(version >= tags_since))
    if place != WALK:
        reader.skip(place)
    elif not _WALKS[api_key](reader, version):
        return -1
    return reader.skip(THROTTLE_BYTES)


def read_throttle(buf: Buffer, offset: int) -> int:
    """The throttle time in ms at `offset`, a result of `throttle_offset`."""
    value: int = INT32.unpack_from(buf, offset)[0]
    return value


def patch_throttle(buf: bytearray, offset: int, ms: int) -> None:
    """Write the throttle time `ms` at `offset`, limited to 0 .. 2**31 - 1.

    Kafka keeps only the low 32 bits of a longer delay. They can be negative, so the client would not wait at all.
    """
    INT32.pack_into(buf, offset, min(max(ms, 0), MAX_THROTTLE_MS))


def _walk_produce(version: int, frame: Buffer, start: int, end: int) -> int:
    reader = Reader.of_frame(frame, start, end)
    scanner = TailScanner(ApiKey.PRODUCE, version)
    reader.pos = start + scanner.feed(frame, start, reader.seen)
    if not scanner.reached:
        raise Incomplete
    return reader.skip(THROTTLE_BYTES)


def _walk_api_versions(reader: Reader, version: int) -> bool:
    if reader.int16() == ErrorCode.UNSUPPORTED_VERSION:
        return False  # this error always uses the layout of v0
    reader.compact = version >= APIS[ApiKey.API_VERSIONS].flexible_since
    for _ in range(reader.count()):
        reader.skip(_API_VERSION_BYTES)
        reader.skip_tags()
    return True


def _walk_create_delegation_token(reader: Reader, version: int) -> bool:
    reader.skip(_ERROR_BYTES)
    _skip_token(reader, version)
    return True


def _skip_token(reader: Reader, version: int) -> None:
    for _ in range(4 if version >= _TOKEN_REQUESTER_SINCE else 2):  # owner's and requester's principal type and name
        reader.skip_string()
    reader.skip(_TIMESTAMPS_BYTES)
    reader.skip_string()
    reader.skip_bytes()


def _walk_describe_delegation_token(reader: Reader, version: int) -> bool:
    reader.skip(_ERROR_BYTES)
    for _ in range(reader.count()):
        _skip_token(reader, version)
        for _ in range(reader.count()):  # renewers
            reader.skip_string()
            reader.skip_string()
            reader.skip_tags()
        reader.skip_tags()
    return True


# Each function skips to throttle_time_ms, or returns False if this response has none.
_WALKS: Final[dict[int, Callable[[Reader, int], bool]]] = {
    ApiKey.API_VERSIONS: _walk_api_versions,
    ApiKey.CREATE_DELEGATION_TOKEN: _walk_create_delegation_token,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _walk_describe_delegation_token,
}
