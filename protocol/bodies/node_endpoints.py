"""Node endpoints: the addresses of new leaders in Produce, Fetch, ShareFetch and ShareAcknowledge responses (KIP-951).

A broker adds them if a partition has moved. The gateway must rewrite them, or the client connects to the broker directly.
They are tagged field 0 of Produce v10+ and Fetch v16+, and the last regular field of the share APIs.

These responses may be too large to hold. A `TailScanner` finds the start of the endpoints while the fields before them
stream by; the gateway holds and rewrites only the tail behind that. By then, the frame's length has been sent. So
`rewrite_tail` pads the new tail to the old length with a tagged field that no client knows.
"""

from typing import Final, NamedTuple

from protocol.api_keys import NEVER, ApiKey
from protocol.bodies import addresses
from protocol.bodies.addresses import Broker, BrokerShape, Translate
from protocol.bodies.tail_scanner import TailScanner
from protocol.cursor import THROTTLE_BYTES, Buffer, Reader
from protocol.encoding import encode_uvarint, spliced
from protocol.errors import InvalidFrame

_SINCE: Final[dict[int, int]] = {ApiKey.PRODUCE: 10, ApiKey.FETCH: 16, ApiKey.SHARE_FETCH: 0, ApiKey.SHARE_ACKNOWLEDGE: 0}
_TAGGED: Final = frozenset((ApiKey.PRODUCE, ApiKey.FETCH))
_SHAPE: Final = BrokerShape(compact=True)
_ENDPOINTS_TAG: Final = 0
_EMPTY_ARRAY: Final = b"\x01"

# Tag numbers far from all of Kafka's, in order of preference. One for every varint length, because the tag number, the size
# and the padding must add up to a given length.
_PADDING_TAGS: Final = (9_999, 127, 999_999, 99_999_999, 2**31 - 1)
_MAX_VARINT_BYTES: Final = 5


def endpoints_since(api_key: int) -> int:
    """The first version of a response with node endpoints; `NEVER` for other APIs."""
    return _SINCE.get(api_key, NEVER)


class _Tag(NamedTuple):
    number: int
    encoded: bytes  # number, size and content


class _Tail(NamedTuple):
    """The decoded tail. `tags` are the tagged fields without the endpoints."""

    tagged: bool
    brokers: list[Broker]
    tags: list[_Tag]

    def encode(self, array: bytes, padding: _Tag | None = None) -> bytes:
        """The tail with `array` as its endpoints. As in Kafka, an empty array is omitted from the tagged fields."""
        tags = [*self.tags, padding] if padding else self.tags
        before = b""
        if not self.tagged:
            before = array
        elif array != _EMPTY_ARRAY:
            tags = [_Tag(_ENDPOINTS_TAG, encode_uvarint(_ENDPOINTS_TAG) + encode_uvarint(len(array)) + array), *tags]
        return before + encode_uvarint(len(tags)) + b"".join(tag.encoded for tag in tags)


def rewrite_frame(api_key: int, version: int, frame: Buffer, translate: Translate) -> bytes:
    """The whole response frame with translated endpoints, without those that `translate` maps to None.

    The frame's length may change. Raises `InvalidFrame`, and `KeyError` for an API without endpoints.
    """
    if version < _SINCE[api_key]:
        return bytes(frame)
    return rewrite_behind(api_key, frame, _section_start(api_key, version, frame), translate)


def rewrite_behind(api_key: int, frame: Buffer, start: int, translate: Translate) -> bytes:
    """As `rewrite_frame`, for a frame whose section of endpoints begins at `start`."""
    section = bytes(frame[start:])
    tail = _parse(api_key, section)
    if not tail.brokers:
        return bytes(frame)
    new = tail.encode(addresses.replaced(section, tail.brokers, _SHAPE, translate))
    return spliced(frame, [(start, len(frame), new)])


def section_offset(api_key: int) -> int:
    """The bytes between the `TailScanner`'s end and the section of endpoints: in Produce, those of throttle_time_ms."""
    return THROTTLE_BYTES if api_key == ApiKey.PRODUCE else 0


def rewrite_tail(api_key: int, version: int, tail: Buffer, translate: Translate) -> bytes:
    """The section of endpoints, with which a response frame ends, with translated endpoints and the same length.

    Drops the endpoints if the new addresses are too long. The client then refreshes its metadata, as before KIP-951. Raises
    `InvalidFrame`, and `KeyError` for an API or version without endpoints.
    """
    if version < _SINCE[api_key]:
        raise KeyError(f"API key {api_key} v{version} has no node endpoints")
    old = bytes(tail)
    parsed = _parse(api_key, old)
    if not parsed.brokers:
        return old
    translated = addresses.replaced(old, parsed.brokers, _SHAPE, translate)
    for array in (translated, _EMPTY_ARRAY):
        fitted = _fitted(parsed, array, len(old))
        if fitted is not None:
            return fitted
    raise InvalidFrame("bad_tags", f"the tagged fields up to number {parsed.tags[-1].number} leave no room for padding")


def _fitted(tail: _Tail, array: bytes, length: int) -> bytes | None:
    """`tail` with `array`, padded to `length` bytes; None if no padding fits."""
    bare = tail.encode(array)
    if len(bare) == length:
        return bare
    last = tail.tags[-1].number if tail.tags else _ENDPOINTS_TAG
    for number in (number for number in _PADDING_TAGS if number > last):
        room = length - len(tail.encode(array, _Tag(number, encode_uvarint(number))))
        for size_bytes in range(1, _MAX_VARINT_BYTES + 1):
            size = encode_uvarint(max(room - size_bytes, 0))
            if size_bytes <= room and len(size) == size_bytes:
                return tail.encode(array, _Tag(number, encode_uvarint(number) + size + bytes(room - size_bytes)))
    return None


def _section_start(api_key: int, version: int, frame: Buffer) -> int:
    Reader.of_whole_response(frame, header_version=1)
    scanner = TailScanner(api_key, version)
    start = scanner.feed(frame, 0, len(frame))
    if not scanner.reached:
        raise InvalidFrame("overrun", f"the response with key {api_key} ends before its node endpoints")
    return start + section_offset(api_key)


def _parse(api_key: int, section: bytes) -> _Tail:
    reader = Reader(section, 0, len(section), len(section), compact=True)
    tagged = api_key in _TAGGED
    brokers = [] if tagged else addresses.read_brokers(reader, _SHAPE)
    tags = []
    previous = -1
    for _ in range(reader.tag_count()):
        start = reader.pos
        number = reader.uvarint()
        if number <= previous:
            raise InvalidFrame("bad_tags", f"tagged field {number} comes after {previous}")
        previous = number
        end = reader.uvarint() + reader.pos
        if tagged and number == _ENDPOINTS_TAG:
            brokers = _parse_field(reader, end)
        else:
            reader.skip(end - reader.pos)
            tags.append(_Tag(number, section[start:end]))
    if reader.pos != len(section):
        raise InvalidFrame("bad_length", f"{len(section) - reader.pos} bytes follow the tagged fields")
    return _Tail(tagged, brokers, tags)


def _parse_field(reader: Reader, end: int) -> list[Broker]:
    start = reader.pos
    reader.skip(end - start)
    inner = Reader(reader.buf, start, end, end, compact=True)
    brokers = addresses.read_brokers(inner, _SHAPE)
    if inner.pos != end:
        raise InvalidFrame("bad_length", f"{end - inner.pos} bytes follow the node endpoints in their tagged field")
    return brokers
