"""Metadata that the gateway itself asks for: brokers, and topics with their partitions (``Metadata*.json``).

Decoded by hand: a cluster has hundreds of thousands of partitions, and the event loop waits (docs/decisions/020).
The handlers of mutations ask in v4, which every broker since 0.11 knows, or in v12 for topics that a client names by id.
"""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from librt.strings import read_i32_be

from protocol.api_keys import APIS, ApiKey, response_header_version
from protocol.bodies import addresses
from protocol.bodies.addresses import BrokerShape
from protocol.bodies.topic_lists import NO_ID
from protocol.cursor import INT32, Buffer, Reader
from protocol.encoding import encode_string, encode_uvarint
from protocol.errors import InvalidFrame
from protocol.headers import RequestHeader, encode_request

BY_NAME: Final = 4
BY_ID: Final = 12
"""The version in which topics may be named by their ids."""

TOPICS_PER_REQUEST: Final = 500
"""Limit on the topics of one request. The response names all their partitions, and the gateway decodes it at once."""


_KEY: Final = ApiKey.METADATA
_RACK_SINCE: Final = 1
_CLUSTER_ID_SINCE: Final = 2
_OFFLINE_SINCE: Final = 5
_LEADER_EPOCH_SINCE: Final = 7
_AUTHORIZED_OPERATIONS_SINCE: Final = 8
_TOPIC_ID_SINCE: Final = 10


class TopicMetadata(NamedTuple):
    """A topic in a response; `name` may be null, `error` is Kafka's code.

    `leaders` has each partition's leader by the partition's index, -1 for none. It is empty unless it was asked for.
    """

    name: str | None
    topic_id: bytes
    error: int
    partitions: int
    internal: bool = False
    leaders: tuple[int, ...] = ()


class MetadataAnswer(NamedTuple):
    """The brokers and the topics of a Metadata response. Some brokers send no cluster id."""

    brokers: list[addresses.Broker]
    topics: list[TopicMetadata]
    cluster_id: str | None = None


def ask_by_name(correlation_id: int, client_id: str | None, names: Iterable[str], *, create: bool = False) -> list[bytes]:
    """Request frames for topics by their names, of at most `TOPICS_PER_REQUEST` topics each.

    `create`: the broker may create missing topics, if its config allows that.
    """
    header = RequestHeader(_KEY, BY_NAME, correlation_id, client_id, 0)
    topics = [encode_string(name, compact=False) for name in sorted(names)]
    return [encode_request(header, INT32.pack(len(some)) + b"".join(some) + bytes([create])) for some in _batches(topics)]


def ask_by_id(correlation_id: int, client_id: str | None, ids: Iterable[bytes]) -> list[bytes]:
    """As `ask_by_name`, for topics by their ids, of 16 bytes."""
    header = RequestHeader(_KEY, BY_ID, correlation_id, client_id, 0)
    topics = [topic_id + b"\0\0" for topic_id in sorted(ids)]  # no name, no tags
    end = b"\0\0\0"  # no creation, no authorized operations, no tags
    return [encode_request(header, encode_uvarint(len(some) + 1) + b"".join(some) + end) for some in _batches(topics)]


def _batches(topics: list[bytes]) -> list[list[bytes]]:
    return [topics[start : start + TOPICS_PER_REQUEST] for start in range(0, len(topics), TOPICS_PER_REQUEST)]


def read_topics(version: int, frame: Buffer) -> list[TopicMetadata]:
    """The topics of a whole response frame. Raises `InvalidFrame`."""
    header_version = response_header_version(_KEY, version)
    return read_answer(version, Reader.of_whole_response(frame, header_version=header_version)).topics


def read_answer(version: int, reader: Reader, leaders_of: Collection[str] = ()) -> MetadataAnswer:
    """The response whose body starts at `reader`, with the leaders of these topics. Raises `InvalidFrame`."""
    if version >= APIS[_KEY].throttle_since:
        reader.skip(INT32.size)
    brokers = addresses.read_brokers(reader, BrokerShape(compact=reader.compact, rack=version >= _RACK_SINCE))
    cluster_id = reader.string() if version >= _CLUSTER_ID_SINCE else None
    if version >= 1:
        reader.skip(INT32.size)  # the controller
    topics = [_read_topic(reader, version, leaders_of) for _ in range(reader.count())]
    return MetadataAnswer(brokers, topics, cluster_id)


def _read_topic(reader: Reader, version: int, leaders_of: Collection[str]) -> TopicMetadata:
    error = reader.int16()
    name = reader.string()
    topic_id = reader.take(len(NO_ID)) if version >= _TOPIC_ID_SINCE else NO_ID
    internal = version >= 1 and reader.byte() != 0
    partitions = reader.count()
    fixed = 14 if version >= _LEADER_EPOCH_SINCE else 10  # error, index, leader, its epoch
    lists = 3 if version >= _OFFLINE_SINCE else 2  # replicas, those in sync, those offline
    leaders: tuple[int, ...] = ()
    if name in leaders_of:
        leaders = _read_leaders(reader, partitions, fixed, lists)
    elif reader.compact:
        for _ in range(partitions):
            reader.skip(fixed)
            for _ in range(lists):
                reader.skip_int32s()
            reader.skip_tags()
    else:
        _skip_partitions(reader, partitions, fixed, lists)
    if version >= _AUTHORIZED_OPERATIONS_SINCE:
        reader.skip(INT32.size)
    reader.skip_tags()
    return TopicMetadata(name, topic_id, error, partitions, internal, leaders)


def _read_leaders(reader: Reader, count: int, fixed: int, lists: int) -> tuple[int, ...]:
    leaders: dict[int, int] = {}
    for _ in range(count):
        start = reader.skip(fixed)
        index: int = INT32.unpack_from(reader.buf, start + 2)[0]
        leaders[index] = INT32.unpack_from(reader.buf, start + 6)[0]
        for _ in range(lists):
            reader.skip_int32s()
        reader.skip_tags()
    return tuple([leaders[index] for index in sorted(leaders)])


def _skip_partitions(reader: Reader, count: int, fixed: int, lists: int) -> None:
    """Step over partitions before v9, without `Reader` for speed: `fixed` bytes, then `lists` arrays of 32-bit integers."""
    buf = bytes(reader.buf)  # the very same object, as a whole frame is bytes
    pos = reader.pos
    end = reader.seen
    for _ in range(count):
        pos += fixed
        for _ in range(lists):
            if pos + 4 > end:
                reader.skip(pos + 4 - reader.pos)  # raises
            size = read_i32_be(buf, pos)
            if not -1 <= size <= end - pos:
                raise InvalidFrame("bad_count", f"a count of {size} with {end - pos} bytes left in the frame")
            pos += 4 if size < 0 else 4 + 4 * size
    reader.skip(pos - reader.pos)
