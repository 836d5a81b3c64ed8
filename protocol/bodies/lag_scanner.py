"""Finds a consumer's lag in a Fetch response, as its bytes stream by.

Each partition has the high watermark before its records, and records begin with their first offset. So a response shows the lag
without its request, also in a fetch session (KIP-227). Layouts: ``FetchResponse.json`` of Kafka 4.3, KIP-896 for v0-3.
"""

from typing import Final

from protocol.bodies import fetch
from protocol.cursor import CORRELATION_BYTES, INT32, INT64, LENGTH_BYTES, Buffer, Reader
from protocol.errors import Incomplete, InvalidFrame

MAX_HELD_BYTES: Final = 1 << 20
"""The most of a partition's fields before its records that the scanner keeps. It gives up on a longer list of transactions."""

_MIN_FRAME_BYTES: Final = LENGTH_BYTES + CORRELATION_BYTES

_HEAD: Final = 0
_TOPIC: Final = 1
_PARTITION: Final = 2
_PARTITION_END: Final = 3
_TOPIC_END: Final = 4
_DONE: Final = 5


class LagScanner:
    """Scans one response frame that arrives in chunks. It keeps the bytes of a field that is cut, and no records."""

    __slots__ = ("_after", "_held", "_lags", "_next", "_partitions", "_skip", "_topics", "_version")

    def __init__(self, version: int) -> None:
        self._version = version
        self._held = b""
        self._skip = 0  # bytes of records that have not arrived
        self._after = 0  # bytes of the frame behind `_held` and behind those to skip
        self._next = _HEAD
        self._topics = 0  # those that are not over
        self._partitions = 0
        self._lags: list[tuple[int, int]] = []

    def lag(self) -> int:
        """The lag in records that at least half of the bytes of records have; -1 without records, and for invalid bytes."""
        found = sorted(self._lags)
        half = sum([size for _, size in found]) / 2
        below = 0
        for lag, size in found:
            below += size
            if below > half:
                return lag
        return -1

    def feed(self, data: Buffer, start: int, end: int) -> None:
        """Take the next bytes of the frame. The first chunk starts with the frame's length. Invalid bytes never raise."""
        if self._skip > 0:
            skipped = min(self._skip, end - start)
            self._skip -= skipped
            start += skipped
        if self._next == _DONE or (start == end and (self._skip or self._after)):
            return
        if self._held:
            data = self._held + bytes(data[start:end])
            start, end = 0, len(data)
        if self._next == _HEAD:
            if end - start < _MIN_FRAME_BYTES:
                self._held = bytes(data[start:end])
                return
            frame_end = start + LENGTH_BYTES + INT32.unpack_from(data, start)[0]
        else:
            frame_end = start + self._after
        reader = Reader(data, start, min(end, frame_end), frame_end, compact=self._version >= fetch.FLEXIBLE_SINCE)
        try:
            self._walk(reader)
        except InvalidFrame:
            self._lags = []
            self._next = _DONE
        if reader.seen - reader.pos > MAX_HELD_BYTES:
            self._next = _DONE
        self._held = b"" if self._next == _DONE else bytes(data[reader.pos : reader.seen])
        self._after = frame_end - reader.pos - self._skip

    def _walk(self, reader: Reader) -> None:
        """Read until the frame or the data ends; the reader then stands behind the last field that was whole."""
        while self._next != _DONE and self._skip == 0:
            start = reader.pos
            try:
                self._step(reader)
            except Incomplete:
                reader.pos = start
                return

    def _step(self, reader: Reader) -> None:
        step = self._next
        if step == _PARTITION:
            self._read_partition(reader)
        elif step == _PARTITION_END:
            reader.skip_tags()
            self._partitions -= 1
            self._next = _PARTITION if self._partitions else _TOPIC_END
        elif step == _TOPIC_END:
            reader.skip_tags()
            self._topics -= 1
            self._next = _TOPIC if self._topics else _DONE
        elif step == _TOPIC:
            self._partitions = fetch.partition_count(reader, self._version)
            self._next = _PARTITION if self._partitions else _TOPIC_END
        else:
            reader.skip(LENGTH_BYTES + CORRELATION_BYTES)
            reader.skip_tags()
            self._topics = fetch.topic_count(reader, self._version)
            self._next = _TOPIC if self._topics else _DONE

    def _read_partition(self, reader: Reader) -> None:
        high_watermark = fetch.high_watermark(reader, self._version)
        size = rest = max(reader.size(wide=True), 0)
        if size >= INT64.size:
            first: int = INT64.unpack_from(reader.buf, reader.skip(INT64.size))[0]
            if high_watermark >= 0:
                self._lags.append((max(high_watermark - first, 0), size))
            rest -= INT64.size
        here = min(rest, reader.seen - reader.pos)
        reader.pos += here
        self._skip = rest - here
        self._next = _PARTITION_END
