"""Request headers, decoded in place without a copy (KIP-482, ``RequestHeader.json``)."""

import sys
from struct import Struct
from typing import Final

from protocol.api_keys import APIS, ApiKey
from protocol.cursor import INT32, MAX_STRING_BYTES, Buffer, Reader
from protocol.errors import Incomplete, InvalidFrame, UnsupportedVersion

_FIXED: Final = Struct(">hhih")  # api_key, api_version, correlation_id, length of client_id
# Kafka 4.3 defines no tagged fields for request headers. These limits bound the bytes to hold and rescan for unknown ones.
_MAX_TAGS: Final = 32
_MAX_TAG_BYTES: Final = 4096

# Plain dicts of ints, because the gateway reads them for every request.
_MAX_VERSION: Final = {key: spec.max_version for key, spec in APIS.items() if spec.on_broker_listener}
_FLEXIBLE_SINCE: Final = {key: spec.flexible_since for key, spec in APIS.items()}


class RequestHeader:
    """A request's header. `body_offset` is absolute in the decoded buffer."""

    __slots__ = ("api_key", "api_version", "body_offset", "client_id", "correlation_id")

    def __init__(self, api_key: int, api_version: int, correlation_id: int, client_id: str | None, body_offset: int) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body_offset = body_offset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RequestHeader) and self._values() == other._values()

    def __repr__(self) -> str:
        return f"RequestHeader{self._values()}"

    def _values(self) -> tuple[int, int, int, str | None, int]:
        return self.api_key, self.api_version, self.correlation_id, self.client_id, self.body_offset

    def moved(self, by: int) -> "RequestHeader":
        """The same header for a copy of the frame that lies `by` bytes further on."""
        return RequestHeader(self.api_key, self.api_version, self.correlation_id, self.client_id, self.body_offset + by)


def parse_request_header(buf: Buffer, start: int, end: int, frame_end: int = sys.maxsize) -> RequestHeader:
    """Decode the header at `start` (behind the frame's length) from the bytes of `buf` before `end`.

    `frame_end` is the offset behind the frame's last byte, if known. Raises `Incomplete` if the header continues behind
    `end`, and `InvalidFrame` if it is malformed or continues behind `frame_end`. Raises `UnsupportedVersion` for a key or
    version that the gateway never advertises.

    ApiVersions is accepted in every version, because a newer client learns the supported versions from the response
    (KIP-511).
    """
    seen = end if end < frame_end else frame_end
    pos = start + _FIXED.size
    if pos > seen:
        _overrun(pos, frame_end)
    api_key, version, correlation_id, client_id_length = _FIXED.unpack_from(buf, start)
    if not 0 <= version <= _MAX_VERSION.get(api_key, -1):
        _require_api_versions(api_key, version)

    client_id = None
    if client_id_length >= 0:
        after = pos + client_id_length
        if after > seen:
            _overrun(after, frame_end)
        client_id = str(buf[pos:after], "utf-8", "replace")
        pos = after
    elif client_id_length != -1:
        raise InvalidFrame("bad_count", f"client_id has length {client_id_length} in a request with key {api_key}")

    if version >= _FLEXIBLE_SINCE[api_key]:
        if pos < seen and buf[pos] == 0:
            pos += 1
        else:
            pos = _skip_tags(buf, pos, seen, frame_end)
    return RequestHeader(api_key, version, correlation_id, client_id, pos)


def encode_request(header: RequestHeader, body: bytes = b"") -> bytes:
    """A whole request frame without tagged fields; ignores the header's `body_offset`.

    Decoding a client id that is not UTF-8 may make it longer, so it is cut to the length that a header can hold.
    """
    name = b"" if header.client_id is None else header.client_id.encode()[:MAX_STRING_BYTES]
    length = -1 if header.client_id is None else len(name)
    head = _FIXED.pack(header.api_key, header.api_version, header.correlation_id, length) + name
    if header.api_version >= _FLEXIBLE_SINCE[header.api_key]:
        head += b"\0"
    return INT32.pack(len(head) + len(body)) + head + body


def _overrun(after: int, frame_end: int) -> None:
    if after > frame_end:
        raise InvalidFrame("overrun", f"the request header ends {after - frame_end} bytes beyond its frame")
    raise Incomplete(after)


def _require_api_versions(api_key: int, version: int) -> None:
    if api_key == ApiKey.API_VERSIONS and version >= 0:
        return
    spec = APIS.get(api_key)
    if spec is None or not spec.on_broker_listener:
        raise UnsupportedVersion("unknown_api", f"the gateway does not advertise API key {api_key}")
    raise UnsupportedVersion(
        "unsupported_version",
        f"{spec.name} v{version}: the gateway advertises v0-{spec.max_version};"
        " the client must choose a version by ApiVersions",
    )


def _skip_tags(buf: Buffer, pos: int, seen: int, frame_end: int) -> int:
    reader = Reader(buf, pos, seen, frame_end)
    count = reader.tag_count()
    if count > _MAX_TAGS:
        raise InvalidFrame("bad_count", f"{count} tagged fields in a request header exceed the limit of {_MAX_TAGS}")
    for _ in range(count):
        reader.uvarint()
        size = reader.uvarint()
        if size > _MAX_TAG_BYTES:
            raise InvalidFrame("bad_count", f"a tagged field of {size} bytes in a request header exceeds {_MAX_TAG_BYTES}")
        reader.skip(size)
    return reader.pos
