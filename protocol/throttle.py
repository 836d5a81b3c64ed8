"""Where throttle_time_ms stands in a response, and reading and writing it there (KIP-124, KIP-219).

In most responses it is the body's first field. The exceptions: a fixed offset behind an error code, which is
`ApiSpec.throttle_place`, and four APIs whose earlier fields have to be walked over. Counting from the frame's end instead
would be wrong as soon as a broker adds a tagged field.
"""

from collections.abc import Callable
from typing import Final

from protocol.api_keys import APIS, NEVER, WALK, ApiKey
from protocol.bodies import produce
from protocol.bodies.api_versions import UNSUPPORTED_VERSION
from protocol.cursor import CORRELATION_BYTES, INT32, LENGTH_BYTES, Buffer, Reader

MAX_THROTTLE_MS: Final = 2**31 - 1
_THROTTLE_BYTES: Final = 4
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
    """The absolute offset of throttle_time_ms in the response at `start`, or -1 where this version has none.

    `frame[start]` is the first byte of the response's length; the bytes before `end` have been seen. For most APIs the
    first 14 of them are enough. Raises `Incomplete` while the field lies behind them, `InvalidFrame` where it doesn't fit
    into the frame, and `KeyError` for an API key that is not in the table.
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
        after = offset + _THROTTLE_BYTES
        if after <= end and after - start - LENGTH_BYTES <= INT32.unpack_from(frame, start)[0]:
            return offset
    return _walk(api_key, version, frame, start, end)


def _walk(api_key: int, version: int, frame: Buffer, start: int, end: int) -> int:
    _, tags_since, place = _PLACES[api_key]
    reader = Reader.of_response(frame, start, end, header_version=int(version >= tags_since))
    if place != WALK:
        reader.skip(place)
    elif not _WALKS[api_key](reader, version):
        return -1
    return reader.skip(_THROTTLE_BYTES)


def read_throttle(buf: Buffer, offset: int) -> int:
    """The throttle time in ms at `offset`, as `throttle_offset` gave it."""
    value: int = INT32.unpack_from(buf, offset)[0]
    return value


def patch_throttle(buf: bytearray, offset: int, ms: int) -> None:
    """Write the throttle time `ms` at `offset`, limited to what the field can hold: 0 to 2**31 - 1.

    Kafka narrows a longer delay to its low 32 bits, which can come out negative and so means no delay at all.
    """
    INT32.pack_into(buf, offset, min(max(ms, 0), MAX_THROTTLE_MS))


def _walk_produce(reader: Reader, version: int) -> bool:
    produce.skip_topics(reader, version)
    return True


def _walk_api_versions(reader: Reader, version: int) -> bool:
    if reader.int16() == UNSUPPORTED_VERSION:
        return False  # answered in the layout of v0, whatever was asked
    compact = version >= APIS[ApiKey.API_VERSIONS].flexible_since
    for _ in range(reader.count(compact=compact)):
        reader.skip(_API_VERSION_BYTES)
        if compact:
            reader.skip_tags()
    return True


def _walk_create_delegation_token(reader: Reader, version: int) -> bool:
    compact = version >= APIS[ApiKey.CREATE_DELEGATION_TOKEN].flexible_since
    reader.skip(_ERROR_BYTES)
    for _ in range(4 if version >= _TOKEN_REQUESTER_SINCE else 2):  # owner's and requester's principal type and name
        reader.skip_string(compact=compact)
    reader.skip(_TIMESTAMPS_BYTES)
    reader.skip_string(compact=compact)
    reader.skip_bytes(compact=compact)
    return True


def _walk_describe_delegation_token(reader: Reader, version: int) -> bool:
    compact = version >= APIS[ApiKey.DESCRIBE_DELEGATION_TOKEN].flexible_since
    reader.skip(_ERROR_BYTES)
    for _ in range(reader.count(compact=compact)):
        for _ in range(4 if version >= _TOKEN_REQUESTER_SINCE else 2):
            reader.skip_string(compact=compact)
        reader.skip(_TIMESTAMPS_BYTES)
        reader.skip_string(compact=compact)
        reader.skip_bytes(compact=compact)
        for _ in range(reader.count(compact=compact)):  # renewers
            reader.skip_string(compact=compact)
            reader.skip_string(compact=compact)
            if compact:
                reader.skip_tags()
        if compact:
            reader.skip_tags()
    return True


# Each steps to throttle_time_ms, or returns False where this response has none after all.
_WALKS: Final[dict[int, Callable[[Reader, int], bool]]] = {
    ApiKey.PRODUCE: _walk_produce,
    ApiKey.API_VERSIONS: _walk_api_versions,
    ApiKey.CREATE_DELEGATION_TOKEN: _walk_create_delegation_token,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _walk_describe_delegation_token,
}
