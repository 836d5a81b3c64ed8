"""DescribeCluster: the brokers' addresses (KIP-700, ``DescribeClusterResponse.json``, v0-2)."""

from typing import Final

from protocol.bodies import addresses
from protocol.bodies.addresses import Broker, BrokerShape, Translate
from protocol.cursor import Buffer, Reader

_ENDPOINT_TYPE_SINCE: Final = 1
_FENCED_SINCE: Final = 2
_THROTTLE_AND_ERROR_BYTES: Final = 6
_CONTROLLER_BYTES: Final = 4


def rewrite_response(version: int, frame: Buffer, translate: Translate) -> bytes:
    """The whole response frame with translated addresses, without the brokers that `translate` maps to None.

    Raises `InvalidFrame`.
    """
    start, brokers, end = _scan(version, frame)
    return addresses.spliced(frame, [(start, end, addresses.replaced(frame, brokers, _shape(version), translate))])


def _shape(version: int) -> BrokerShape:
    return BrokerShape(compact=True, extra_bytes=int(version >= _FENCED_SINCE))


def _scan(version: int, frame: Buffer) -> tuple[int, list[Broker], int]:
    reader = Reader.of_whole_response(frame, header_version=1)
    reader.skip(_THROTTLE_AND_ERROR_BYTES)
    reader.skip_string(compact=True)  # error message
    if version >= _ENDPOINT_TYPE_SINCE:
        reader.skip(1)
    reader.skip_string(compact=True)  # cluster id
    reader.skip(_CONTROLLER_BYTES)
    start = reader.pos
    brokers = addresses.read_brokers(reader, _shape(version))
    return start, brokers, reader.pos
