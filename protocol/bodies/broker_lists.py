"""Metadata and DescribeCluster: translates the addresses in the list of brokers, which precedes everything large.

Layouts: ``MetadataResponse.json`` v0-13, ``DescribeClusterResponse.json`` v0-2 (KIP-700) of Kafka 4.3.
"""

from typing import Final

from protocol.bodies import addresses
from protocol.bodies.addresses import BrokerShape, Translate
from protocol.cursor import Buffer, Reader

_RACK_SINCE: Final = 1
_THROTTLE_SINCE: Final = 3
_FLEXIBLE_SINCE: Final = 9
_THROTTLE_BYTES: Final = 4

_ENDPOINT_TYPE_SINCE: Final = 1
_FENCED_SINCE: Final = 2
_THROTTLE_AND_ERROR_BYTES: Final = 6
_CONTROLLER_BYTES: Final = 4


def rewrite_metadata(version: int, frame: Buffer, translate: Translate) -> bytes:
    """The whole response frame with the brokers' addresses translated; all other bytes are copied.

    A broker that `translate` maps to None is left out. Its partitions keep their leader's id, and clients treat the leader
    as not available yet. Raises `InvalidFrame`.
    """
    compact = version >= _FLEXIBLE_SINCE
    reader = Reader.of_whole_response(frame, header_version=int(compact))
    if version >= _THROTTLE_SINCE:
        reader.skip(_THROTTLE_BYTES)
    return _rewrite(reader, BrokerShape(compact=compact, rack=version >= _RACK_SINCE), translate)


def rewrite_describe_cluster(version: int, frame: Buffer, translate: Translate) -> bytes:
    """The whole response frame with translated addresses, without the brokers that `translate` maps to None.

    Raises `InvalidFrame`.
    """
    reader = Reader.of_whole_response(frame, header_version=1)
    reader.skip(_THROTTLE_AND_ERROR_BYTES)
    reader.skip_string()  # error message
    if version >= _ENDPOINT_TYPE_SINCE:
        reader.skip(1)
    reader.skip_string()  # cluster id
    reader.skip(_CONTROLLER_BYTES)
    return _rewrite(reader, BrokerShape(compact=True, extra_bytes=int(version >= _FENCED_SINCE)), translate)


def _rewrite(reader: Reader, shape: BrokerShape, translate: Translate) -> bytes:
    start = reader.pos
    brokers = addresses.read_brokers(reader, shape)
    array = addresses.replaced(reader.buf, brokers, shape, translate)
    return addresses.spliced(reader.buf, [(start, reader.pos, array)])
