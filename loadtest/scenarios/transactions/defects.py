"""Gateways with a planted defect, to show that the checker can find one.

python -m loadtest.scenarios.transactions.defects DEFECT serve --config weir.yaml
"""

import asyncio
import random
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from kafka.record.util import calc_crc32c

from gateway.cluster.brokers import Address
from gateway.commands import main
from gateway.proxy.connection import Session
from gateway.proxy.sessions import SessionHost
from gateway.proxy.wire import Slot
from loadtest.testkit.gateway_process import GatewayProcess
from protocol.api_keys import ApiKey
from protocol.bodies.produce import refuse
from protocol.bodies.produced_topics import ProduceScanner, indexes_of, scan_whole
from protocol.headers import RequestHeader, parse_request_header

EVERY: Final = 10
"""One in this many requests meets the defect, at random."""

_LENGTH: Final = 4
_CRC_OFFSET, _ATTRIBUTES_OFFSET, _PRODUCER_OFFSET = 17, 21, 43
_NO_PRODUCER: Final = struct.pack(">qhi", -1, -1, -1)
_FIRST_OWN_ID: Final = 0x7F000000

Verdict = tuple[list[bytes], list[bytes]]
"""Frames for the broker, and frames for the client."""

Defect = Callable[[RequestHeader, bytes], Verdict | None]
"""Decides about a request's whole frame. None: the request passes unchanged."""


def committed_aborts(header: RequestHeader, frame: bytes) -> Verdict | None:
    """The gateway turns an abort into a commit."""
    return _other_end(header, frame, commits=False)


def aborted_commits(header: RequestHeader, frame: bytes) -> Verdict | None:
    """The gateway turns a commit into an abort."""
    return _other_end(header, frame, commits=True)


def _other_end(header: RequestHeader, frame: bytes, *, commits: bool) -> Verdict | None:
    tags = 1 if header.api_version >= 3 else 0
    place = len(frame) - 1 - tags
    if header.api_key != ApiKey.END_TXN or bool(frame[place]) != commits:
        return None
    return [frame[:place] + bytes([not commits]) + frame[place + 1 :]], []


def uncommitted_reads(header: RequestHeader, frame: bytes) -> Verdict | None:
    """The gateway lets a reader of committed records see all records."""
    if header.api_key != ApiKey.FETCH:
        return None
    place = header.body_offset + (12 if header.api_version >= 15 else 16)
    return [frame[:place] + b"\0" + frame[place + 1 :]], []


def dropped_produce(header: RequestHeader, frame: bytes) -> Verdict | None:
    """The gateway acknowledges a Produce request itself, and does not forward it."""
    if header.api_key != ApiKey.PRODUCE:
        return None
    topics = indexes_of(scan_whole(header.api_version, frame, header.body_offset).topics)
    return [], [refuse(header.api_version, header.correlation_id, topics, 0, "")]


def repeated_produce(header: RequestHeader, frame: bytes) -> Verdict | None:
    """The gateway forwards a Produce request of an idempotent producer twice, once without the producer's sequence."""
    if header.api_key != ApiKey.PRODUCE:
        return None
    scanner = ProduceScanner(header.api_version, len(frame), header.body_offset)
    scanner.feed(frame, header.body_offset, len(frame))
    copy = bytearray(frame)
    copy[8:12] = struct.pack(">i", _FIRST_OWN_ID + header.correlation_id)
    for partition in (each for topic in scanner.topics for each in topic.partitions):
        batch = partition.records
        if frame[batch + _ATTRIBUTES_OFFSET + 1] & 0x10:  # transactional
            return None
        copy[batch + _PRODUCER_OFFSET : batch + _PRODUCER_OFFSET + len(_NO_PRODUCER)] = _NO_PRODUCER
        crc = calc_crc32c(bytes(copy[batch + _ATTRIBUTES_OFFSET : batch + partition.size]))
        copy[batch + _CRC_OFFSET : batch + _ATTRIBUTES_OFFSET] = struct.pack(">I", crc)
    return [frame, bytes(copy)], []


DEFECTS: Final[Mapping[str, Defect]] = {
    "committed-aborts": committed_aborts,
    "aborted-commits": aborted_commits,
    "uncommitted-reads": uncommitted_reads,
    "dropped-produce": dropped_produce,
    "repeated-produce": repeated_produce,
}


class DefectiveGateway(GatewayProcess):
    """A gateway that runs interpreted, with one of `DEFECTS`."""

    def __init__(
        self, directory: Path, upstream: str, config: Mapping[str, Any], listener: Mapping[str, Any], *, defect: str
    ) -> None:
        super().__init__(directory, upstream, config, listener)
        self._defect = defect

    def command(self) -> list[str]:
        return [sys.executable, "-m", __spec__.name, self._defect, "serve", "--config", str(self.config_file)]


class _Frames:
    """Cuts a stream into whole frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        self._rest += data
        frames = []
        while len(self._rest) >= _LENGTH:
            size = _LENGTH + int.from_bytes(self._rest[:_LENGTH], "big")
            if len(self._rest) < size:
                break
            frames.append(self._rest[:size])
            self._rest = self._rest[size:]
        return frames


class _Link:
    """A connection to a broker, with the defect between the session and the transport.

    A forged response waits for the broker's responses to earlier requests, so that the order stays.
    """

    def __init__(self, session_end: asyncio.Protocol, defect: Defect) -> None:
        self.session_end = session_end
        self._defect = defect
        self._requests, self._responses = _Frames(), _Frames()
        self._waiting: list[int] = []
        self._forged: dict[int, list[bytes]] = {}

    def write(self, transport: asyncio.Transport, data: bytes) -> None:
        for frame in self._requests.feed(bytes(data)):
            header = parse_request_header(frame, _LENGTH, len(frame))
            verdict = self._defect(header, frame) if random.random() * EVERY < 1 else None
            there, back = verdict or ([frame], [])
            for each in there:
                self._waiting.append(int.from_bytes(each[8:12], "big"))
                transport.write(each)
            if back and self._waiting:
                self._forged.setdefault(self._waiting[-1], []).extend(back)
            elif back:
                self.session_end.data_received(b"".join(back))

    def receive(self, data: bytes) -> None:
        for frame in self._responses.feed(data):
            number = int.from_bytes(frame[_LENGTH : 2 * _LENGTH], "big")
            self._waiting.remove(number)
            own = [frame] if number < _FIRST_OWN_ID else []
            for each in [*own, *self._forged.pop(number, [])]:
                self.session_end.data_received(each)


class _Protocol:
    """Passes the broker's bytes to the link, and everything else to the session."""

    def __init__(self, link: _Link) -> None:
        self.data_received = link.receive
        self._end = link.session_end

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._end, name)


class _Transport:
    """Passes the session's bytes to the link, and everything else to the transport."""

    def __init__(self, link: _Link, transport: asyncio.Transport) -> None:
        self.write = partial(link.write, transport)
        self._transport = transport

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._transport, name)


def plant(defect: Defect) -> None:
    """Put the defect into all sessions of this process."""
    begin = Session.__init__

    def defective(self: Session, host: SessionHost, slot: Slot, address: Address) -> None:
        async def dial(make: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
            link = _Link(make(), defect)
            transport = await host.dial(lambda: cast("asyncio.Protocol", _Protocol(link)))
            return cast("asyncio.Transport", _Transport(link, transport))

        begin(self, replace(host, dial=dial, dial_at_once=None), slot, address)

    setattr(Session, "__init__", defective)  # noqa: B010 -- mypy allows no assignment to a method


if __name__ == "__main__":
    plant(DEFECTS[sys.argv[1]])
    sys.exit(main(sys.argv[2:]))
