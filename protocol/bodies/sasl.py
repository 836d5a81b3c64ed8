"""SaslHandshake and SaslAuthenticate: the choice of a mechanism, and the transport of its tokens (KIP-43, KIP-152).

The tokens may contain passwords. This module does not interpret, store or quote them.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from protocol.api_keys import APIS, ApiKey, response_header_version
from protocol.cursor import INT16, INT32, Buffer, Reader
from protocol.encoding import encode_message, encode_string
from protocol.error_codes import ErrorCode
from protocol.errors import InvalidFrame

RAW_TOKENS: Final = 0
"""After this version of SaslHandshake, clients send raw tokens with a length prefix; later ones use SaslAuthenticate."""

MAX_FRAME_BYTES: Final = 512 * 1024
"""Kafka's default of sasl.server.max.receive.size: the limit on a frame before authentication, and on a raw token."""

_LIFETIME_SINCE: Final = 1  # of SaslAuthenticate, as the next one
_FLEXIBLE_SINCE: Final = APIS[ApiKey.SASL_AUTHENTICATE].flexible_since
_CORRELATION_ID: Final = slice(4, 8)


class Handshaken(NamedTuple):
    """A broker's response to a handshake: Kafka's error code, and the broker's mechanisms."""

    error_code: int
    mechanisms: tuple[str, ...]


class Authenticated(NamedTuple):
    """A broker's response to a token: Kafka's error code, the reason in the broker's words, and the broker's own token."""

    error_code: int
    message: str
    token: bytes


def read_handshake_request(frame: Buffer, body: int) -> str:
    """The mechanism in a whole request frame with its body at offset `body`. Raises `InvalidFrame`."""
    reader = Reader(frame, body, len(frame), len(frame))
    mechanism = reader.string() or ""
    _require_end(reader)
    return mechanism


def read_handshake_response(frame: Buffer) -> Handshaken:
    """Decode a whole response frame. Raises `InvalidFrame`."""
    reader = Reader.of_whole_response(frame, header_version=0)
    error_code = reader.int16()
    count = reader.count()
    return Handshaken(error_code, tuple(reader.string() or "" for _ in range(count)))


def refuse_mechanism(answer: Buffer, mechanisms: Sequence[str]) -> bytes:
    """A frame that takes the place of the broker's answer to a handshake: choose one of these mechanisms instead."""
    names = b"".join(encode_string(name, compact=False) for name in mechanisms)
    return _in_place_of(answer, INT16.pack(ErrorCode.UNSUPPORTED_SASL_MECHANISM) + INT32.pack(len(mechanisms)) + names)


def read_authenticate_request(version: int, frame: Buffer, body: int) -> bytes:
    """The token in a whole request frame with its body at offset `body`. Raises `InvalidFrame`."""
    reader = Reader(frame, body, len(frame), len(frame), compact=version >= _FLEXIBLE_SINCE)
    token = reader.bytes_field()
    reader.skip_tags()
    _require_end(reader)
    return token


def read_authenticate_response(version: int, frame: Buffer) -> Authenticated:
    """Decode a whole response frame. Raises `InvalidFrame`."""
    reader = Reader.of_whole_response(frame, header_version=response_header_version(ApiKey.SASL_AUTHENTICATE, version))
    return Authenticated(reader.int16(), reader.string() or "", reader.bytes_field())


def refuse_token(version: int, answer: Buffer, message: str) -> bytes:
    """A frame that takes the place of the broker's answer to a token: SASL_AUTHENTICATION_FAILED with this message."""
    compact = version >= _FLEXIBLE_SINCE
    tags = b"\0" if compact else b""
    no_token = b"\1" if compact else INT32.pack(0)
    lifetime = bytes(8) if version >= _LIFETIME_SINCE else b""
    error = INT16.pack(ErrorCode.SASL_AUTHENTICATION_FAILED) + encode_message(message, compact=compact)
    return _in_place_of(answer, tags + error + no_token + lifetime + tags)


def _in_place_of(answer: Buffer, rest: bytes) -> bytes:
    frame = bytes(answer[_CORRELATION_ID]) + rest
    return INT32.pack(len(frame)) + frame


def _require_end(reader: Reader) -> None:
    if reader.pos != reader.end:
        raise InvalidFrame("trailing_bytes", f"{reader.end - reader.pos} bytes follow a request's last field")
