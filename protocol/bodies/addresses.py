"""Replaces the broker addresses in a response and copies all other bytes unchanged.

Metadata, DescribeCluster and NodeEndpoints (KIP-951) list brokers in one layout: node id, host, port, rack. Decoding and
encoding the whole message would lose unknown tagged fields, and would take milliseconds for a large cluster.

Layouts: ``MetadataResponse.json`` v0-13, ``DescribeClusterResponse.json`` v0-2 (KIP-700) of Kafka 4.3.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from protocol.api_keys import APIS, ApiKey, response_header_version
from protocol.cursor import INT32, LENGTH_BYTES, THROTTLE_BYTES, Buffer, Reader
from protocol.encoding import array_count, encode_string
from protocol.errors import InvalidFrame

Translate = Callable[[int, str, int], tuple[str, int] | None]
"""Maps (node id, host, port) to the host and port for clients, or to None to remove this broker from the list."""

Learn = Callable[[str | None, Sequence["Broker"]], None]
"""Gets the cluster id of an answer, None if it has none, and its brokers before their translation. May raise `OtherCluster`."""

_MAX_FRAME_BYTES: Final = 2**31 - 1
_METADATA_RACK_SINCE: Final = 1
_METADATA_CLUSTER_ID_SINCE: Final = 2
_ENDPOINT_TYPE_SINCE: Final = 1  # of DescribeCluster, as all below
_FENCED_SINCE: Final = 2
_THROTTLE_AND_ERROR_BYTES: Final = 6
_CONTROLLER_BYTES: Final = 4


class BrokerShape(NamedTuple):
    """The layout of a broker in one message and version. `extra_bytes` of fixed length follow the rack, if any."""

    compact: bool
    rack: bool = True
    extra_bytes: int = 0


class Broker(NamedTuple):
    """A broker at `start` to `end` in a buffer. `rest` is the offset behind its port."""

    node_id: int
    host: str
    port: int
    start: int
    rest: int
    end: int


def rewrite_metadata(version: int, frame: Buffer, translate: Translate, learn: Learn | None = None) -> bytes:
    """The whole response frame with the brokers' addresses translated; all other bytes are copied.

    A broker that `translate` maps to None is left out. Its partitions keep their leader's id, and clients treat the leader
    as not available yet. Raises `InvalidFrame`, and whatever `learn` raises.
    """
    reader = Reader.of_whole_response(frame, header_version=response_header_version(ApiKey.METADATA, version))
    front, behind = _metadata_front(reader, 0, version, translate, learn)
    return b"".join((front, memoryview(reader.buf)[behind:]))


def rewrite_metadata_front(
    version: int, buf: Buffer, start: int, seen: int, translate: Translate, learn: Learn | None = None
) -> tuple[bytes, int]:
    """As `rewrite_metadata`, for a response at `start` of which the bytes before `seen` have arrived.

    Returns the new frame up to the end of the brokers, and the old offset of this end: all bytes from there on are copied.
    Raises `Incomplete` if a broker ends behind `seen`, or with `learn` the cluster id, and `InvalidFrame`.
    """
    reader = Reader.of_response(buf, start, seen, header_version=response_header_version(ApiKey.METADATA, version))
    return _metadata_front(reader, start, version, translate, learn)


def _metadata_front(reader: Reader, start: int, version: int, translate: Translate, learn: Learn | None) -> tuple[bytes, int]:
    if version >= APIS[ApiKey.METADATA].throttle_since:
        reader.skip(THROTTLE_BYTES)
    shape = BrokerShape(compact=reader.compact, rack=version >= _METADATA_RACK_SINCE)
    array_at = reader.pos
    brokers = read_brokers(reader, shape)
    behind = reader.pos
    if learn is not None:
        learn(reader.string() if version >= _METADATA_CLUSTER_ID_SINCE else None, brokers)
    return _front(reader, start, array_at, behind, replaced(reader.buf, brokers, shape, translate)), behind


def rewrite_describe_cluster(version: int, frame: Buffer, translate: Translate, learn: Learn | None = None) -> bytes:
    """The whole response frame with translated addresses, without the brokers that `translate` maps to None.

    Raises `InvalidFrame`, and whatever `learn` raises.
    """
    reader = Reader.of_whole_response(frame, header_version=1)
    reader.skip(_THROTTLE_AND_ERROR_BYTES)
    reader.skip_string()  # error message
    if version >= _ENDPOINT_TYPE_SINCE:
        reader.skip(1)
    cluster_id = reader.string()
    reader.skip(_CONTROLLER_BYTES)
    shape = BrokerShape(compact=True, extra_bytes=int(version >= _FENCED_SINCE))
    array_at = reader.pos
    brokers = read_brokers(reader, shape)
    behind = reader.pos
    if learn is not None:
        learn(cluster_id, brokers)
    front = _front(reader, 0, array_at, behind, replaced(reader.buf, brokers, shape, translate))
    return b"".join((front, memoryview(reader.buf)[behind:]))


def _front(reader: Reader, start: int, array_at: int, behind: int, array: bytes) -> bytes:
    """The frame at `start` up to the end of the brokers at `array_at` to `behind`, with `array` in their place.

    Its length field is updated.
    """
    size = reader.end - start - LENGTH_BYTES + len(array) - (behind - array_at)
    if size > _MAX_FRAME_BYTES:
        raise InvalidFrame("bad_length", f"translated addresses make the frame {size} bytes long, at most {_MAX_FRAME_BYTES}")
    return b"".join((INT32.pack(size), memoryview(reader.buf)[start + LENGTH_BYTES : array_at], array))


def read_brokers(reader: Reader, shape: BrokerShape) -> list[Broker]:
    """Decode the array of brokers at the reader's position. Raises `InvalidFrame` if it exceeds the frame."""
    return [_read_broker(reader, shape) for _ in range(reader.count())]


def _read_broker(reader: Reader, shape: BrokerShape) -> Broker:
    start = reader.pos
    node_id = reader.int32()
    host = reader.string()
    port = reader.int32()
    rest = reader.pos
    if shape.rack:
        reader.skip_string()
    reader.skip(shape.extra_bytes)
    reader.skip_tags()
    return Broker(node_id, host or "", port, start, rest, reader.pos)


def replaced(buf: Buffer, brokers: Iterable[Broker], shape: BrokerShape, translate: Translate) -> bytes:
    """Encode the array of `brokers` with the addresses from `translate`, without the brokers that map to None.

    `buf` is the buffer that the brokers were decoded from. Brokers are translated in the order of their node ids, so that
    assigned ports do not depend on the order of the array.
    """
    in_order = list(brokers)
    translated: dict[int, tuple[str, int] | None] = {}
    for broker in sorted(in_order, key=_node_id):
        translated[broker.start] = translate(broker.node_id, broker.host, broker.port)
    parts = [b""]
    count = 0
    for broker in in_order:
        address = translated[broker.start]
        if address is None:
            continue
        host, port = address
        parts += (
            INT32.pack(broker.node_id),
            encode_string(host, compact=shape.compact),
            INT32.pack(port),
            bytes(buf[broker.rest : broker.end]),
        )
        count += 1
    parts[0] = array_count(count, compact=shape.compact)
    return b"".join(parts)


def _node_id(broker: Broker) -> int:
    return broker.node_id
