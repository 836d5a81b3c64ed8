"""DescribeClientQuotas and AlterClientQuotas, decoded and encoded completely (KIP-546, ``*ClientQuotas*.json``, v0-1).

Administrators send these requests rarely. Unknown tagged fields are dropped.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, NamedTuple, TypeVar

from protocol.bodies.addresses import array_count, encode_string
from protocol.cursor import INT16, INT32, MAX_ELEMENTS, Buffer, Reader
from protocol.errors import InvalidFrame
from protocol.headers import RequestHeader

MATCH_EXACT: Final = 0
MATCH_DEFAULT: Final = 1
MATCH_SPECIFIED: Final = 2
"""``DescribeClientQuotasRequest.MATCH_TYPE_*``: the given name, the default entity, or any entity of this type."""

_FLEXIBLE_SINCE: Final = 1
_FLOAT64 = Struct(">d")
_NO_TAGS: Final = b"\0"
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
    entries: tuple[DescribedEntity, ...] | None


class AlterResponse(NamedTuple):
    """The body of an AlterClientQuotas response."""

    throttle_time_ms: int
    results: tuple[AlterResult, ...]


def read_alter_request(frame: Buffer, header: RequestHeader) -> AlterRequest:
    """Decode the body of a whole request frame with this header. Raises `InvalidFrame`."""
    fields = _Fields.of_request(frame, header)
    entries = fields.array(lambda: fields.struct(lambda: AlterEntry(_read_entity(fields), tuple(fields.array(fields.op)))))
    request = AlterRequest(tuple(entries), fields.boolean())
    fields.end()
    return request


def write_alter_request(frame: Buffer, header: RequestHeader, request: AlterRequest) -> bytes:
    """A request frame with the header of `frame` and a new body. `header` is the decoded header of `frame`."""
    to = _Encoding(header.api_version)
    entries = to.array(request.entries, lambda entry: to.entity(entry.entity) + to.array(entry.ops, to.op))
    return to.frame(bytes(frame[INT32.size : header.body_offset]), entries + _boolean(request.validate_only))


def read_alter_response(version: int, frame: Buffer) -> AlterResponse:
    """Decode the body of a whole response frame. Raises `InvalidFrame`."""
    fields = _Fields.of_response(frame, version)
    throttle = fields.reader.int32()
    results = fields.array(
        lambda: fields.struct(lambda: AlterResult(fields.reader.int16(), fields.nullable_string(), _read_entity(fields)))
    )
    fields.end()
    return AlterResponse(throttle, tuple(results))


def write_alter_response(version: int, correlation_id: int, response: AlterResponse) -> bytes:
    to = _Encoding(version)
    results = to.array(
        response.results,
        lambda result: INT16.pack(result.error_code) + to.nullable_string(result.message) + to.entity(result.entity),
    )
    return to.response(correlation_id, INT32.pack(response.throttle_time_ms) + results)


def read_describe_request(frame: Buffer, header: RequestHeader) -> DescribeRequest:
    """Decode the body of a whole request frame with this header. Raises `InvalidFrame`."""
    fields = _Fields.of_request(frame, header)
    components = fields.array(
        lambda: fields.struct(lambda: Component(fields.string(), fields.int8(), fields.nullable_string()))
    )
    request = DescribeRequest(tuple(components), fields.boolean())
    fields.end()
    return request


def read_describe_response(version: int, frame: Buffer) -> DescribeResponse:
    """Decode the body of a whole response frame. Raises `InvalidFrame`."""
    fields = _Fields.of_response(frame, version)
    head = fields.reader.int32(), fields.reader.int16(), fields.nullable_string()
    entries = fields.nullable_array(
        lambda: fields.struct(lambda: DescribedEntity(_read_entity(fields), tuple(fields.array(fields.value))))
    )
    fields.end()
    return DescribeResponse(*head, None if entries is None else tuple(entries))


def write_describe_response(version: int, correlation_id: int, response: DescribeResponse) -> bytes:
    to = _Encoding(version)
    head = INT32.pack(response.throttle_time_ms) + INT16.pack(response.error_code) + to.nullable_string(response.message)
    entries = to.array(response.entries, lambda each: to.entity(each.entity) + to.array(each.values, to.value))
    return to.response(correlation_id, head + entries)


def _read_entity(fields: "_Fields") -> tuple[EntityPart, ...]:
    return tuple(fields.array(lambda: fields.struct(lambda: EntityPart(fields.string(), fields.nullable_string()))))


class _Fields:
    """Decodes a body's fields in both encodings, compact and not."""

    def __init__(self, reader: Reader, version: int) -> None:
        self.reader = reader
        self._flexible = version >= _FLEXIBLE_SINCE

    @classmethod
    def of_request(cls, frame: Buffer, header: RequestHeader) -> "_Fields":
        reader = Reader(frame, header.body_offset, len(frame), len(frame))
        reader.elements_left = MAX_ELEMENTS
        return cls(reader, header.api_version)

    @classmethod
    def of_response(cls, frame: Buffer, version: int) -> "_Fields":
        return cls(Reader.of_whole_response(frame, header_version=int(version >= _FLEXIBLE_SINCE)), version)

    def int8(self) -> int:
        return (self.reader.byte() ^ 0x80) - 0x80

    def boolean(self) -> bool:
        return self.reader.byte() != 0

    def float64(self) -> float:
        value: float = _FLOAT64.unpack_from(self.reader.buf, self.reader.skip(_FLOAT64.size))[0]
        return value

    def nullable_string(self) -> str | None:
        return self.reader.string(compact=self._flexible)

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise InvalidFrame("bad_count", f"the string that ends at byte {self.reader.pos} must not be null")
        return text

    def op(self) -> Op:
        return self.struct(self._op)

    def _op(self) -> Op:
        key, value = self.string(), self.float64()
        return Op(key, None if self.boolean() else value)

    def value(self) -> tuple[str, float]:
        return self.struct(lambda: (self.string(), self.float64()))

    def array(self, element: Callable[[], _T]) -> list[_T]:
        return self.nullable_array(element) or []

    def nullable_array(self, element: Callable[[], _T]) -> list[_T] | None:
        size = self.reader.size(compact=self._flexible, wide=True)
        self.reader.spend(max(size, 0))
        return None if size < 0 else [element() for _ in range(size)]

    def struct(self, read: Callable[[], _T]) -> _T:
        """Decode the fields of an array's element, and skip its tagged fields."""
        value = read()
        if self._flexible:
            self.reader.skip_tags()
        return value

    def end(self) -> None:
        """Skip the body's tagged fields. Raises `InvalidFrame` if bytes follow."""
        if self._flexible:
            self.reader.skip_tags()
        left = self.reader.end - self.reader.pos
        if left:
            raise InvalidFrame("bad_length", f"{left} bytes behind the last field")


class _Encoding:
    """Encodes a body's fields in both encodings, compact and not."""

    def __init__(self, version: int) -> None:
        self._flexible = version >= _FLEXIBLE_SINCE

    def string(self, text: str) -> bytes:
        return encode_string(text, compact=self._flexible)

    def nullable_string(self, text: str | None) -> bytes:
        if text is None:
            return b"\0" if self._flexible else b"\xff\xff"
        return self.string(text)

    def entity(self, entity: Sequence[EntityPart]) -> bytes:
        return self.array(entity, lambda part: self.string(part.entity_type) + self.nullable_string(part.name))

    def op(self, op: Op) -> bytes:
        return self.string(op.key) + _FLOAT64.pack(op.value or 0.0) + _boolean(op.value is None)

    def value(self, pair: tuple[str, float]) -> bytes:
        return self.string(pair[0]) + _FLOAT64.pack(pair[1])

    def array(self, elements: Sequence[_T] | None, encode: Callable[[_T], bytes]) -> bytes:
        """The elements are structs; None is a null array."""
        size = -1 if elements is None else len(elements)
        parts = [array_count(size, compact=self._flexible)]
        parts += [encode(element) + self._no_tags for element in elements or ()]
        return b"".join(parts)

    def frame(self, header: bytes, body: bytes) -> bytes:
        return INT32.pack(len(header) + len(body) + len(self._no_tags)) + header + body + self._no_tags

    def response(self, correlation_id: int, body: bytes) -> bytes:
        return self.frame(INT32.pack(correlation_id) + self._no_tags, body)

    @property
    def _no_tags(self) -> bytes:
        return _NO_TAGS if self._flexible else b""


def _boolean(value: bool) -> bytes:
    return b"\1" if value else b"\0"
