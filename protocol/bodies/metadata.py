"""Metadata: translates the brokers' addresses, which are near the start of the response (``MetadataResponse.json``, v0-13)."""

from typing import Final

from protocol.bodies import addresses
from protocol.bodies.addresses import Broker, BrokerShape, Translate
from protocol.cursor import Buffer, Reader

_RACK_SINCE: Final = 1
_THROTTLE_SINCE: Final = 3
_FLEXIBLE_SINCE: Final = 9
_THROTTLE_BYTES: Final = 4


def rewrite_response(version: int, frame: Buffer, translate: Translate) -> bytes:
    """The whole response frame with the brokers' addresses translated; all other bytes are copied.

    A broker that `translate` maps to None is left out. Its partitions keep their leader's id, and clients treat the leader
    as not available yet. Raises `InvalidFrame`.
    """
    start, brokers, end = _scan(version, frame)
    return addresses.spliced(frame, [(start, end, addresses.replaced(frame, brokers, _shape(version), translate))])


def _shape(version: int) -> BrokerShape:
    return BrokerShape(compact=version >= _FLEXIBLE_SINCE, rack=version >= _RACK_SINCE)


def _scan(version: int, frame: Buffer) -> tuple[int, list[Broker], int]:
    reader = Reader.of_whole_response(frame, header_version=int(version >= _FLEXIBLE_SINCE))
    if version >= _THROTTLE_SINCE:
        reader.skip(_THROTTLE_BYTES)
    start = reader.pos
    brokers = addresses.read_brokers(reader, _shape(version))
    return start, brokers, reader.pos
