"""Reads and edits topic configs in IncrementalAlterConfigs, AlterConfigs and DescribeConfigs; all other bytes stay
unchanged.

Layouts: ``IncrementalAlterConfigs*.json`` v0-1, ``AlterConfigs*.json`` v0-2, ``DescribeConfigs*.json`` v0-4 of Kafka 4.3.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from protocol.api_keys import APIS, ApiKey
from protocol.bodies import topic_lists
from protocol.cursor import INT16, INT32, Buffer, Reader
from protocol.encoding import array_count, encode_message, encode_nullable_string, encode_string, spliced
from protocol.error_codes import ErrorCode

TOPIC: Final = 2
"""``ConfigResource.Type.TOPIC``."""

SET: Final = 0
DELETE: Final = 1
"""``AlterConfigOp.OpType``. AlterConfigs supports only SET."""

DYNAMIC_TOPIC: Final = 1
STATIC_BROKER: Final = 4
"""``DescribeConfigsResponse.ConfigSource``: set for the topic, or in the server's config file."""

_LONG: Final = 5  # DescribeConfigsResponse.ConfigType
_SOURCE_SINCE: Final = 1
_DOCUMENTATION_SINCE: Final = 3


class ConfigOp(NamedTuple):
    """A change of one config, at `start` to `end` in its frame."""

    name: str
    operation: int
    value: str | None
    start: int
    end: int


class AlteredResource(NamedTuple):
    """A resource at `start` to `end` in its frame. The array of its changes spans `ops_start` to `ops_end`."""

    resource_type: int
    name: str
    ops: Sequence[ConfigOp]
    start: int
    ops_start: int
    ops_end: int
    end: int


class AlterConfigsRequest(NamedTuple):
    """The resources of a request. Their array spans `start` to `end`."""

    resources: Sequence[AlteredResource]
    validate_only: bool
    start: int
    end: int


class ResourceResult(NamedTuple):
    """The broker's result for one resource: its error code and its encoded bytes."""

    error: int
    encoded: bytes


class DescribeConfigsRequest(NamedTuple):
    """The topics of a DescribeConfigs with the names of the requested configs; None requests all configs."""

    topics: Mapping[str, Sequence[str] | None]
    synonyms: bool


class DescribedThreshold(NamedTuple):
    """The values of a config of type LONG: for the topic, and in the server's config file. None if not set there."""

    dynamic: str | None
    static: str | None


def read_alter_request(api_key: int, version: int, frame: Buffer, body_offset: int) -> AlterConfigsRequest:
    """Decode the body of a whole IncrementalAlterConfigs or AlterConfigs. Raises `InvalidFrame`."""
    incremental = api_key == ApiKey.INCREMENTAL_ALTER_CONFIGS
    reader = Reader.of_whole_request(frame, body_offset, compact=version >= APIS[api_key].flexible_since)
    resources = [_read_resource(reader, incremental) for _ in range(reader.count())]
    end = reader.pos
    return AlterConfigsRequest(resources, reader.byte() != 0, body_offset, end)


def _read_resource(reader: Reader, incremental: bool) -> AlteredResource:
    start = reader.pos
    resource_type = reader.byte()
    name = reader.string() or ""
    ops_start = reader.pos
    ops: list[ConfigOp] = []
    for _ in range(reader.count()):
        op_start = reader.pos
        key = reader.string() or ""
        operation = reader.byte() if incremental else SET
        value = reader.string()
        reader.skip_tags()
        ops.append(ConfigOp(key, operation, value, op_start, reader.pos))
    ops_end = reader.pos
    reader.skip_tags()
    return AlteredResource(resource_type, name, ops, start, ops_start, ops_end, reader.pos)


def keep(
    api_key: int,
    version: int,
    frame: Buffer,
    request: AlterConfigsRequest,
    kept: Sequence[tuple[AlteredResource, Sequence[ConfigOp]]],
) -> bytes:
    """The request frame with only these resources, and only these changes for each."""
    compact = version >= APIS[api_key].flexible_since
    view = memoryview(frame)
    parts: list[Buffer] = [array_count(len(kept), compact=compact)]
    for resource, ops in kept:
        parts += (view[resource.start : resource.ops_start], array_count(len(ops), compact=compact))
        parts += [view[op.start : op.end] for op in ops]
        parts.append(view[resource.ops_end : resource.end])
    return spliced(frame, [(request.start, request.end, b"".join(parts))])


def read_alter_response(api_key: int, version: int, frame: bytes) -> dict[tuple[int, str], ResourceResult]:
    """The results of a whole response frame by resource type and name. Raises `InvalidFrame`."""
    results, _, _ = topic_lists.read_results(ApiKey(api_key), version, frame, _read_result)
    return {(each.resource_type, each.name): ResourceResult(each.error, frame[each.start : each.end]) for each in results}


def with_results(api_key: int, version: int, frame: bytes, results: Sequence[bytes]) -> bytes:
    """The response frame with these results instead of its own."""
    _, start, end = topic_lists.read_results(ApiKey(api_key), version, frame, _read_result)
    return topic_lists.answer_with(ApiKey(api_key), version, frame, start, end, results)


def make_answer(api_key: int, version: int, correlation_id: int, results: Sequence[bytes]) -> bytes:
    """A response frame with these results and no throttle time."""
    return topic_lists.make_answer(ApiKey(api_key), version, correlation_id, results)


def result(api_key: int, version: int, error: int, message: str | None, resource: AlteredResource) -> bytes:
    compact = version >= APIS[api_key].flexible_since
    text = encode_message(message, compact=compact)
    name = encode_string(resource.name, compact=compact)
    return INT16.pack(error) + text + bytes((resource.resource_type,)) + name + (b"\0" if compact else b"")


class _Result(NamedTuple):
    """A broker's result for one resource, at `start` to `end` in its frame."""

    resource_type: int
    name: str
    error: int
    start: int
    end: int


def _read_result(reader: Reader) -> _Result:
    start = reader.pos
    error = reader.int16()
    reader.skip_string()
    resource_type = reader.byte()
    name = reader.string() or ""
    reader.skip_tags()
    return _Result(resource_type, name, error, start, reader.pos)


def read_describe_request(version: int, frame: Buffer, body_offset: int) -> DescribeConfigsRequest:
    """The topics of a whole DescribeConfigs. Raises `InvalidFrame`."""
    compact = version >= APIS[ApiKey.DESCRIBE_CONFIGS].flexible_since
    reader = Reader.of_whole_request(frame, body_offset, compact=compact)
    topics: dict[str, Sequence[str] | None] = {}
    for _ in range(reader.count()):
        resource_type = reader.byte()
        name = reader.string() or ""
        size = reader.size(wide=True)
        reader.spend(max(size, 0))
        keys = None if size < 0 else [reader.string() or "" for _ in range(size)]
        reader.skip_tags()
        if resource_type == TOPIC:
            topics[name] = keys
    return DescribeConfigsRequest(topics, version >= _SOURCE_SINCE and reader.byte() != 0)


def with_configs(version: int, frame: bytes, key: str, added: Mapping[str, DescribedThreshold], *, synonyms: bool) -> bytes:
    """The response frame with an additional config `key` for topics that the broker has described. Raises `InvalidFrame`."""
    compact = version >= APIS[ApiKey.DESCRIBE_CONFIGS].flexible_since
    reader = Reader.of_whole_response(frame, header_version=int(compact))
    reader.skip(INT32.size)
    pieces: list[tuple[int, int, bytes]] = []
    for _ in range(reader.count()):
        error = reader.int16()
        reader.skip_string()
        resource_type = reader.byte()
        name = reader.string() or ""
        start = reader.pos
        count = reader.count()
        first = reader.pos
        for _ in range(count):
            _skip_config(reader, version)
        value = added.get(name)
        if error == ErrorCode.NONE and resource_type == TOPIC and value is not None:
            pieces.append((start, first, array_count(count + 1, compact=compact)))
            pieces.append((reader.pos, reader.pos, _config(version, compact, key, value, synonyms=synonyms)))
        reader.skip_tags()
    return spliced(frame, pieces)


def _skip_config(reader: Reader, version: int) -> None:
    reader.skip_string()
    reader.skip_string()
    reader.skip(3)  # read-only, is-default or source, sensitive
    if version >= _SOURCE_SINCE:
        for _ in range(reader.count()):
            reader.skip_string()
            reader.skip_string()
            reader.skip(1)
            reader.skip_tags()
    if version >= _DOCUMENTATION_SINCE:
        reader.skip(1)
        reader.skip_string()
    reader.skip_tags()


def _config(version: int, compact: bool, key: str, value: DescribedThreshold, *, synonyms: bool) -> bytes:
    tags = b"\0" if compact else b""
    name = encode_string(key, compact=compact)
    by_source = [(value.dynamic, DYNAMIC_TOPIC), (value.static, STATIC_BROKER)]
    known = [(encode_string(text, compact=compact), source) for text, source in by_source if text is not None]
    text, source = known[0]
    place = bytes((0, source, 0)) if version >= _SOURCE_SINCE else bytes((0, source != DYNAMIC_TOPIC, 0))
    encoded = name + text + place
    if version >= _SOURCE_SINCE:
        listed = known if synonyms else []
        encoded += array_count(len(listed), compact=compact) + b"".join(
            name + each + bytes((of,)) + tags for each, of in listed
        )
    if version >= _DOCUMENTATION_SINCE:
        encoded += bytes((_LONG,)) + encode_nullable_string(None, compact=compact)
    return encoded + tags
