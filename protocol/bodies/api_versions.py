"""ApiVersions: limits the advertised versions to those that the broker and this gateway support (KIP-511).

The response's header always has version 0. With the error UNSUPPORTED_VERSION, the body has the layout of v0. So a client
can decode the response before it knows the broker's versions.
"""

import re
from struct import Struct
from typing import Final

from protocol.api_keys import APIS, ApiKey
from protocol.cursor import Buffer, Reader
from protocol.encoding import array_count, spliced
from protocol.error_codes import ErrorCode
from protocol.headers import RequestHeader, encode_request

ASKED: Final = 0
"""The version of the gateway's own requests. Every broker supports it."""

MAX_SOFTWARE: Final = 64
"""The maximum number of characters that the gateway keeps of the name and of the version of a client's software."""

_SOFTWARE_SINCE: Final = 3
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""As in Kafka's ApiVersionsRequest: brokers refuse other names."""

_MAX_KEPT: Final = 16 * 1024
"""The longest list of versions that is remembered. Kafka's has 500 bytes."""

_RANGE: Final = Struct(">hhh")  # key, min version, max version
_SPEC: Final = APIS[ApiKey.API_VERSIONS]

_limited: Final[dict[bool, tuple[bytes, bytes]]] = {}
"""The last list of versions, in each of the two layouts, and the list that clients get for it. All brokers send the same one,
and clients ask before they log in."""


def rewrite_response(version: int, frame: Buffer) -> bytes:
    """The whole response frame with the versions limited to those in `APIS`, and without other APIs.

    APIs between brokers and controllers are left out too. The features in the tagged fields, and unknown tagged fields,
    stay. Raises `InvalidFrame`.
    """
    reader = _reader(version, frame)
    start = reader.pos
    theirs, ours = _limited.get(reader.compact, (b"", b""))
    end = start + len(theirs)
    if not theirs or frame[start:end] != theirs:  # a list that begins with another one is that list
        ours = _limit(reader)
        end = reader.pos
        if end - start <= _MAX_KEPT:
            _limited[reader.compact] = bytes(frame[start:end]), ours
    return spliced(frame, [(start, end, ours)])


def _limit(reader: Reader) -> bytes:
    """The list of versions at which the reader stands, as clients get it."""
    kept = [b""]
    for _ in range(reader.count()):
        at = reader.skip(_RANGE.size)
        reader.skip_tags()
        common = _intersection(*_RANGE.unpack_from(reader.buf, at))
        if common:
            kept.append(_RANGE.pack(*common) + bytes(reader.buf[at + _RANGE.size : reader.pos]))
    kept[0] = array_count(len(kept) - 1, compact=reader.compact)
    return b"".join(kept)


def software(version: int, buf: Buffer, body_offset: int, seen: int, frame_end: int) -> tuple[str, str]:
    """The name and the version of the client's software in a request (KIP-511); "" where they are missing or invalid.

    Raises `Incomplete` if they lie behind `seen`, and `InvalidFrame`.
    """
    if version < _SOFTWARE_SINCE:
        return "", ""
    reader = Reader(buf, body_offset, seen, frame_end, compact=True)
    return _cleaned(reader.string()), _cleaned(reader.string())


def ask(correlation_id: int, client_id: str | None) -> bytes:
    """A request frame of version `ASKED`."""
    return encode_request(RequestHeader(ApiKey.API_VERSIONS, ASKED, correlation_id, client_id, 0))


def max_version(version: int, frame: Buffer, api_key: int) -> int:
    """The broker's newest version of an API in a whole response frame; -1 if it has none. Raises `InvalidFrame`."""
    reader = _reader(version, frame)
    for _ in range(reader.count()):
        key, _, newest = _RANGE.unpack_from(frame, reader.skip(_RANGE.size))
        if key == api_key:
            return int(newest)
        reader.skip_tags()
    return -1


def _cleaned(name: str | None) -> str:
    return name[:MAX_SOFTWARE] if name is not None and _SOFTWARE.fullmatch(name) else ""


def _reader(version: int, frame: Buffer) -> Reader:
    """A reader that stands behind the error code of a whole response frame."""
    reader = Reader.of_whole_response(frame, header_version=0)
    reader.compact = reader.int16() != ErrorCode.UNSUPPORTED_VERSION and version >= _SPEC.flexible_since
    return reader


def _intersection(key: int, low: int, high: int) -> tuple[int, int, int] | None:
    spec = APIS.get(key)
    if spec is None or not spec.on_broker_listener:
        return None
    low, high = max(low, 0), min(high, spec.max_version)
    return (key, low, high) if low <= high else None
