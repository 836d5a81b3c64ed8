"""DescribeClientQuotas and AlterClientQuotas, decoded and encoded completely (KIP-546, ``*ClientQuotas*.json``, v0-1).

Administrators send these requests rarely. Unknown tagged fields are dropped.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, TypeVar

from protocol.api_keys import APIS, ApiKey
from protocol.cursor import INT16, INT32, Buffer, Reader
from protocol.encoding import array_count, encode_message, encode_nullable_string, encode_string
from protocol.errors import InvalidFrame
from protocol.headers import RequestHeader, encode_request

MATCH_EXACT: Final = 0
MATCH_DEFAULT: Final = 1
MATCH_SPECIFIED: Final = 2
"""``DescribeClientQuotasRequest.MATCH_TYPE_*``: the given name, the default entity, or any entity of this type."""

ASKED: Final = 0
"""The version of Weir's own AlterClientQuotas. Every broker knows it."""

_FLEXIBLE_SINCE: Final = APIS[ApiKey.ALTER_CLIENT_QUOTAS].flexible_since  # and that of DescribeClientQuotas
_FLOAT64 = Struct(">d")
_T = TypeVar("_T")


class EntityPart(NamedTuple):
    """One type and name of an entity, such as `user` and `alice`. The name None means the default entity."""

    entity_type: str
    name: str | None


class Op(NamedTuple):
    """A quota to set, or to remove if the value is None."""

    key: str
    value: float | None


class AlterEntry(NamedTuple):
    """The changes of one entity's quotas."""

    entity: tuple[EntityPart, ...]
    ops: tuple[Op, ...]


class AlterRequest(NamedTuple):
    """The body of an AlterClientQuotas request."""

    entries: tuple[AlterEntry, ...]
    validate_only: bool


class AlterResult(NamedTuple):
    """The result of one entity's changes. The message is None if the code is 0."""

    error_code: int
    message: str | None
    entity: tuple[EntityPart, ...]


class Component(NamedTuple):
    """A part of a filter: the condition on the name of one entity type. `match_type` is a `MATCH_*`, or invalid."""

    entity_type: str
    match_type: int
    match: str | None


class DescribeRequest(NamedTuple):
    """The filter of a DescribeClientQuotas. With `strict`, entities must not have types outside the filter."""

    components: tuple[Component, ...]
    strict: bool


class DescribedEntity(NamedTuple):
    """An entity and its quotas as keys and values."""

    entity: tuple[EntityPart, ...]
    values: tuple[tuple[str, float], ...]


class DescribeResponse(NamedTuple):
    """`entries` is None after an error."""

    throttle_time_ms: int
    error_code: int
    message: str | None
    entries: Iterable[DescribedEntity] | None


class AlterResponse(NamedTuple):
    """The body of an AlterClientQuotas response."""

    throttle_time_ms: int
    results: tuple[AlterResult, ...]


def read_alter_request(frame: Buffer, header: RequestHeader) -> AlterRequest:
    """Decode the body of a whole request frame with this header. Raises `InvalidFrame`."""
    reader = _request_reader(frame, header)
    request = AlterRequest(_array(reader, _read_alter_entry), reader.byte() != 0)
    _end(reader)
    return request


def write_alter_request(frame: Buffer, header: RequestHeader, request: AlterRequest) -> bytes:
    """A request frame with the header of `frame` and a new body. `header` is the decoded header of `frame`."""
    to = _Encoding(header.api_version)
    return to.frame(bytes(frame[INT32.size : header.body_offset]), to.alteration(request))


def ask_alter(correlation_id: int, client_id: str | None, request: AlterRequest) -> bytes:
    """A request frame of version `ASKED`."""
    header = RequestHeader(ApiKey.ALTER_CLIENT_QUOTAS, ASKED, correlation_id, client_id, 0)
    return encode_request(header, _Encoding(ASKED).alteration(request))


def read_alter_response(version: int, frame: Buffer) -> AlterResponse:
    """Decode the body of a whole response frame. Raises `InvalidFrame`."""
    reader = Reader.of_whole_response(frame, header_version=int(version >= _FLEXIBLE_SINCE))
    response = AlterResponse(reader.int32(), _array(reader, _read_alter_result))
    _end(reader)
    return response


def write_alter_response(version: int, correlation_id: int, response: AlterResponse) -> bytes:
    to = _Encoding(version)
    results = to.array(
        response.results,
        lambda result: INT16.pack(result.error_code) + to.message(result.message) + to.entity(result.entity),
    )
    return to.response(correlation_id, INT32.pack(response.throttle_time_ms) + results)


def read_describe_request(frame: Buffer, header: RequestHeader) -> DescribeRequest:
    """Decode the body of a whole request frame with this header. Raises `InvalidFrame`."""
    reader = _request_reader(frame, header)
    request = DescribeRequest(_array(reader, _read_component), reader.byte() != 0)
    _end(reader)
    return request


def write_describe_request(frame: Buffer, header: RequestHeader, request: DescribeRequest) -> bytes:
    """A request frame with the header of `frame` and a new body. `header` is the decoded header of `frame`."""
    to = _Encoding(header.api_version)
    components = to.array(
        request.components,
        lambda each: to.string(each.entity_type) + bytes((each.match_type & 0xFF,)) + to.nullable_string(each.match),
    )
    return to.frame(bytes(frame[INT32.size : header.body_offset]), components + _boolean(request.strict))


def read_describe_response(version: int, frame: Buffer) -> DescribeResponse:
    """Decode the body of a whole response frame. Raises `InvalidFrame`, and the iteration over `entries` does so too.

    There may be many thousands of entries. The iteration decodes them one by one, and is possible once.
    """
    reader = Reader.of_whole_response(frame, header_version=int(version >= _FLEXIBLE_SINCE))
    throttle_time_ms, error_code, message = reader.int32(), reader.int16(), reader.string()
    size = reader.size(wide=True)
    if size >= 0:
        return DescribeResponse(throttle_time_ms, error_code, message, _described_entities(reader, size))
    _end(reader)
    return DescribeResponse(throttle_time_ms, error_code, message, None)


def describe_response_in_steps(version: int, correlation_id: int, response: DescribeResponse) -> Generator[None, None, bytes]:
    """A response frame. The generator encodes an entry in each step, and returns the frame."""
    to = _Encoding(version)
    entries: list[bytes] = []
    for each in response.entries or ():
        entries.append(to.struct(to.entity(each.entity) + to.array(each.values, to.value)))
        yield
    head = INT32.pack(response.throttle_time_ms) + INT16.pack(response.error_code) + to.message(response.message)
    count = to.count(-1 if response.entries is None else len(entries))
    return to.response(correlation_id, b"".join([head, count, *entries]))


def _request_reader(frame: Buffer, header: RequestHeader) -> Reader:
    return Reader.of_whole_request(frame, header.body_offset, compact=header.api_version >= _FLEXIBLE_SINCE)


def _read_alter_entry(reader: Reader) -> AlterEntry:
    return AlterEntry(_array(reader, _read_entity_part), _array(reader, _read_op))


def _read_alter_result(reader: Reader) -> AlterResult:
    return AlterResult(reader.int16(), reader.string(), _array(reader, _read_entity_part))


def _read_component(reader: Reader) -> Component:
    return Component(_string(reader), (reader.byte() ^ 0x80) - 0x80, reader.string())


def _described_entities(reader: Reader, size: int) -> Iterator[DescribedEntity]:
    for _ in range(size):
        entity = DescribedEntity(_array(reader, _read_entity_part), _array(reader, _read_value))
        reader.skip_tags()
        yield entity
    _end(reader)


def _read_entity_part(reader: Reader) -> EntityPart:
    return EntityPart(_string(reader), reader.string())


def _read_op(reader: Reader) -> Op:
    key, value = _read_value(reader)
    return Op(key, None if reader.byte() else value)


def _read_value(reader: Reader) -> tuple[str, float]:
    return _string(reader), _FLOAT64.unpack_from(reader.buf, reader.skip(_FLOAT64.size))[0]


def _string(reader: Reader) -> str:
    text = reader.string()
    if text is None:
        raise InvalidFrame("bad_count", f"the string that ends at byte {reader.pos} must not be null")
    return text


def _array(reader: Reader, read: Callable[[Reader], _T]) -> tuple[_T, ...]:
    """Decode an array of structs. `read` decodes the fields before a struct's tagged fields."""
    size = reader.size(wide=True)
    reader.spend(max(size, 0))
    elements: list[_T] = []
    for _ in range(size):
        elements.append(read(reader))
        reader.skip_tags()
    return tuple(elements)


def _end(reader: Reader) -> None:
    """Skip the body's tagged fields. Raises `InvalidFrame` if bytes follow."""
    reader.skip_tags()
    left = reader.end - reader.pos
    if left:
        raise InvalidFrame("bad_length", f"{left} bytes behind the last field")


class _Encoding:
    """Encodes a body's fields in both encodings, compact and not."""

    def __init__(self, version: int) -> None:
        self._compact = version >= _FLEXIBLE_SINCE
        self._no_tags = b"\0" if self._compact else b""

    def string(self, text: str) -> bytes:
        return encode_string(text, compact=self._compact)

    def nullable_string(self, text: str | None) -> bytes:
        return encode_nullable_string(text, compact=self._compact)

    def message(self, text: str | None) -> bytes:
        return encode_message(text, compact=self._compact)

    def entity(self, entity: Sequence[EntityPart]) -> bytes:
        return self.array(entity, lambda part: self.string(part.entity_type) + self.nullable_string(part.name))

    def op(self, op: Op) -> bytes:
        return self.value((op.key, op.value or 0.0)) + _boolean(op.value is None)

    def alteration(self, request: AlterRequest) -> bytes:
        entries = self.array(request.entries, lambda entry: self.entity(entry.entity) + self.array(entry.ops, self.op))
        return entries + _boolean(request.validate_only)

    def value(self, pair: tuple[str, float]) -> bytes:
        return self.string(pair[0]) + _FLOAT64.pack(pair[1])

    def array(self, elements: Sequence[_T], encode: Callable[[_T], bytes]) -> bytes:
        """The elements are structs."""
        return self.count(len(elements)) + b"".join([self.struct(encode(element)) for element in elements])

    def count(self, elements: int) -> bytes:
        """The beginning of an array; -1 is a null array."""
        return array_count(elements, compact=self._compact)

    def struct(self, fields: bytes) -> bytes:
        return fields + self._no_tags

    def frame(self, header: bytes, body: bytes) -> bytes:
        return INT32.pack(len(header) + len(body) + len(self._no_tags)) + header + body + self._no_tags

    def response(self, correlation_id: int, body: bytes) -> bytes:
        return self.frame(INT32.pack(correlation_id) + self._no_tags, body)


def _boolean(value: bool) -> bytes:
    return b"\1" if value else b"\0"
