"""Broker addresses inside a response: found by position, replaced by splicing, everything around them left as it came.

Metadata, DescribeCluster and the NodeEndpoints of KIP-951 list brokers in one shape: node id, host, port, then a rack and
fields that nobody here needs. Re-encoding whole messages instead would lose tagged fields unknown here and cost
milliseconds for a large cluster's metadata.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from protocol.cursor import INT16, INT32, Buffer, Reader
from protocol.errors import InvalidFrame

Translate = Callable[[int, str, int], tuple[str, int] | None]
"""(node id, host, port) -> the host and port that clients are told, or None to leave this broker out of lists."""

_MAX_STRING_BYTES: Final = 2**15 - 1


class BrokerShape(NamedTuple):
    """How one message and version writes a broker; the rack, if `rack`, is followed by `extra_bytes` fixed ones."""

    compact: bool
    rack: bool = True
    extra_bytes: int = 0


class Broker(NamedTuple):
    """A broker as it stands in a buffer: from `start` to `end`, with everything behind its port from `rest` on."""

    node_id: int
    host: str
    port: int
    start: int
    rest: int
    end: int


def read_brokers(reader: Reader, shape: BrokerShape) -> list[Broker]:
    """The brokers of the array that `reader` stands at. Raises `InvalidFrame` where they don't fit into the frame."""
    return [_read_broker(reader, shape) for _ in range(reader.count(compact=shape.compact))]


def _read_broker(reader: Reader, shape: BrokerShape) -> Broker:
    start = reader.pos
    node_id = reader.int32()
    host = reader.string(compact=shape.compact)
    port = reader.int32()
    rest = reader.pos
    if shape.rack:
        reader.skip_string(compact=shape.compact)
    reader.skip(shape.extra_bytes)
    if shape.compact:
        reader.skip_tags()
    return Broker(node_id, host or "", port, start, rest, reader.pos)


def replaced(buf: Buffer, brokers: Iterable[Broker], shape: BrokerShape, translate: Translate) -> bytes:
    """The array of those of `brokers`, read from `buf`, that `translate` gives an address for, with these addresses.

    `translate` is called in the order of the node ids, so that what it assigns does not depend on the order of the array.
    """
    in_order = list(brokers)
    told: dict[int, tuple[str, int] | None] = {}
    for broker in sorted(in_order, key=_node_id):
        told[broker.start] = translate(broker.node_id, broker.host, broker.port)
    parts = [b""]
    count = 0
    for broker in in_order:
        address = told[broker.start]
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
    parts[0] = encode_uvarint(count + 1) if shape.compact else INT32.pack(count)
    return b"".join(parts)


def _node_id(broker: Broker) -> int:
    return broker.node_id


def spliced(frame: Buffer, pieces: Iterable[tuple[int, int, bytes]]) -> bytes:
    """`frame` with each (from, to, new bytes) of `pieces` put in, in ascending order, and its length corrected."""
    view = memoryview(frame)
    parts: list[Buffer] = [b""]
    pos = INT32.size
    for start, end, new in pieces:
        parts += (view[pos:start], new)
        pos = end
    parts.append(view[pos:])
    parts[0] = INT32.pack(sum(map(len, parts)))
    return b"".join(parts)


def encode_uvarint(value: int) -> bytes:
    """`value` as an unsigned varint, in as few bytes as it takes."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_string(text: str, *, compact: bool) -> bytes:
    """A string that is not null. Raises `InvalidFrame` for one that Kafka's strings can't hold."""
    data = text.encode()
    if len(data) > _MAX_STRING_BYTES:
        raise InvalidFrame("bad_count", f"a host of {len(data)} bytes, Kafka's strings hold {_MAX_STRING_BYTES}")
    return (encode_uvarint(len(data) + 1) if compact else INT16.pack(len(data))) + data
