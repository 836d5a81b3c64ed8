"""What a Produce request holds for each partition, read while it passes by; partitions taken out, answers put together.

Layouts: ``ProduceRequest.json`` and ``ProduceResponse.json`` of Kafka 4.3 (v3-13), KIP-896 for the versions before.
"""

from collections.abc import Container, Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

from protocol.bodies.addresses import spliced
from protocol.bodies.produce import partition_bytes, skip_errors
from protocol.bodies.produce_refusal import array_count, failed_partition, read_topic, topic_field
from protocol.cursor import Buffer, Reader
from protocol.errors import Incomplete, InvalidFrame

MAX_SCANNED_ELEMENTS: Final = 20_000
"""The most topics, partitions and tagged fields of one request; each partition is remembered until the answer comes."""

_TRANSACTIONAL_SINCE: Final = 3
_RECORD_ERRORS_SINCE: Final = 8
_FLEXIBLE_SINCE: Final = 9

_TIMEOUT_BYTES: Final = 4
_INDEX_ERROR: Final = Struct(">ih")

_MAGIC_OFFSET: Final = 16
_MAGIC: Final = 2
_PRODUCER_OFFSET: Final = 43
_PRODUCER: Final = Struct(">qhi")  # producerId, producerEpoch, baseSequence
_BATCH_HEAD_BYTES: Final = 61

_HEAD: Final = 0
_TOPIC: Final = 1
_PARTITION: Final = 2
_PARTITION_TAGS: Final = 3
_TOPIC_TAGS: Final = 4
_DONE: Final = 5

_UNCOUNTED: Final = -1  # the number of tagged fields has not been read


class ProducedPartition(NamedTuple):
    """A partition of a request, from `start` on in its frame; its records are the `size` bytes from `records` on."""

    partition_index: int
    start: int
    records: int
    size: int


class ProducedTopic:
    """A topic of a request: its name's bytes or (v13+) its id, and where it stands in the frame.

    From `start` to `partitions_start` stands its name or id, from `first` on the partitions, `ends[i]` is behind the i-th of
    them, and `end` behind its tags.
    """

    __slots__ = ("end", "ends", "first", "key", "partitions", "partitions_start", "start")

    def __init__(self, key: bytes, start: int, partitions_start: int, first: int) -> None:
        self.key = key
        self.start = start
        self.partitions_start = partitions_start
        self.first = first
        self.partitions: list[ProducedPartition] = []
        self.ends: list[int] = []
        self.end = first


class ProduceScanner:
    """Fed one Produce request in stretches of any length, tells what it holds. Keeps none of its records.

    A byte is read once, or twice where a stretch ends inside a short field: neither a field nor a section of tagged fields
    is read again from its beginning for each stretch.

    All offsets are those of the frame, its four bytes of length included. The array of topics goes from `array_start` to
    `array_end`; `acks` and the topics are complete once `done` is True. What may stand behind them is not looked at.
    """

    __slots__ = (
        "_compact", "_elements_left", "_frame_bytes", "_left", "_partitions_left", "_rest", "_skip", "_step", "_tags_left",
        "_topics_left", "_version", "_wanted", "acks", "array_end", "array_start", "topics",
    )  # fmt: skip

    def __init__(self, version: int, frame_bytes: int, body_offset: int) -> None:
        self._version = version
        self._compact = version >= _FLEXIBLE_SINCE
        self._frame_bytes = frame_bytes
        self._left = frame_bytes - body_offset  # bytes of the frame that have not been read
        self._rest = bytearray()  # what has come of a field that is not there as a whole
        self._wanted = 0  # how much of it has to be there before it is worth reading again
        self._skip = 0  # records, or bytes of a tagged field, still to come
        self._tags_left = _UNCOUNTED
        self._elements_left = MAX_SCANNED_ELEMENTS
        self._step = _HEAD
        self._topics_left = 0
        self._partitions_left = 0
        self.acks = -1
        self.topics: list[ProducedTopic] = []
        self.array_start = 0
        self.array_end = 0

    @property
    def done(self) -> bool:
        """Whether all of the topics have been read."""
        return self._step == _DONE

    def feed(self, data: Buffer, start: int, end: int) -> None:
        """Take `data[start:end]`, the next bytes of the frame; the first of them are those of the body.

        Raises `InvalidFrame` where a field doesn't fit into the frame; the scanner is of no further use then.
        """
        if self._step == _DONE:
            return
        if self._skip:
            skipped = min(self._skip, end - start)
            self._skip -= skipped
            self._left -= skipped
            start += skipped
        if self._rest:
            self._rest += memoryview(data)[start:end]
            if len(self._rest) < self._wanted:
                return
            data, self._rest = self._rest, bytearray()
            start, end = 0, len(data)
        reader = Reader(data, start, end, start + self._left)
        reader.elements_left = self._elements_left
        if end > reader.end:
            reader.seen = reader.end
        while self._step != _DONE and not self._skip:
            pos = reader.pos
            try:
                self._take(reader)
            except Incomplete as cut:
                self._wanted = cut.wanted - pos
                self._rest = bytearray(memoryview(data)[pos:end])
                reader.pos = pos
                break
        self._left = reader.end - reader.pos
        self._elements_left = reader.elements_left

    def _take(self, reader: Reader) -> None:
        """Read the next few fields; what they say is noted only when all of them are there."""
        step = self._step
        if step == _PARTITION:
            self._take_partition(reader)
        elif step == _PARTITION_TAGS:
            if self._compact and self._tags_left != 0:
                self._take_tags(reader)
                return
            self._tags_left = _UNCOUNTED
            self.topics[-1].ends.append(self._offset(reader, reader.pos))
            self._partitions_left -= 1
            self._step = _PARTITION if self._partitions_left else _TOPIC_TAGS
        elif step == _TOPIC_TAGS:
            if self._compact and self._tags_left != 0:
                self._take_tags(reader)
                return
            self._tags_left = _UNCOUNTED
            self.topics[-1].end = self._offset(reader, reader.pos)
            self._topics_left -= 1
            self._next_topic(reader)
        elif step == _TOPIC:
            self._take_topic(reader)
        else:
            if self._version >= _TRANSACTIONAL_SINCE:
                reader.skip_string(compact=self._compact)
            acks = reader.int16()
            reader.skip(_TIMEOUT_BYTES)
            array_start = reader.pos
            self._topics_left = reader.count(compact=self._compact)
            self.acks = acks
            self.array_start = self._offset(reader, array_start)
            self._next_topic(reader)

    def _next_topic(self, reader: Reader) -> None:
        if self._topics_left:
            self._step = _TOPIC
        else:
            self._step = _DONE
            self.array_end = self._offset(reader, reader.pos)

    def _take_topic(self, reader: Reader) -> None:
        start = reader.pos
        key = read_topic(reader, self._version)
        partitions_start = reader.pos
        count = reader.count(compact=self._compact)
        offset = self._offset(reader, start)
        moved = offset - start
        self.topics.append(ProducedTopic(key, offset, partitions_start + moved, reader.pos + moved))
        self._partitions_left = count
        self._step = _PARTITION if count else _TOPIC_TAGS

    def _take_partition(self, reader: Reader) -> None:
        start = reader.pos
        index = reader.int32()
        size = max(reader.size(compact=self._compact, wide=True), 0)
        records = reader.pos
        moved = self._offset(reader, start) - start
        self.topics[-1].partitions.append(ProducedPartition(index, start + moved, records + moved, size))
        self._step = _PARTITION_TAGS
        self._pass_over(reader, size)

    def _take_tags(self, reader: Reader) -> None:
        """Read the number of tagged fields, or step over one of them."""
        if self._tags_left == _UNCOUNTED:
            self._tags_left = reader.tag_count()
            return
        reader.uvarint()
        self._pass_over(reader, reader.uvarint())
        self._tags_left -= 1

    def _pass_over(self, reader: Reader, size: int) -> None:
        """Step over bytes, some of which may come in later stretches."""
        here = min(size, reader.seen - reader.pos)
        if size > reader.end - reader.pos:
            here = size  # which raises
        reader.skip(here)
        self._skip = size - here

    def _offset(self, reader: Reader, pos: int) -> int:
        return self._frame_bytes - (reader.end - pos)


def scan_whole(version: int, frame: Buffer, body_offset: int) -> ProduceScanner:
    """What a whole request frame holds. Raises `InvalidFrame`."""
    scanner = ProduceScanner(version, len(frame), body_offset)
    scanner.feed(frame, body_offset, len(frame))
    if not scanner.done:
        raise InvalidFrame("overrun", "a Produce request ends inside its topics")
    return scanner


def producer_sequence(frame: Buffer, partition: ProducedPartition) -> tuple[int, int, int] | None:
    """(producer id, epoch, base sequence) of a partition's records; None where their producer is not idempotent."""
    start = partition.records
    if partition.size < _BATCH_HEAD_BYTES or frame[start + _MAGIC_OFFSET] != _MAGIC:
        return None
    producer_id, epoch, sequence = _PRODUCER.unpack_from(frame, start + _PRODUCER_OFFSET)
    return None if producer_id < 0 else (producer_id, epoch, sequence)


Cut = Container[tuple[int, int]]
"""Partitions that are taken out of a request: (position of the topic, position of the partition), as they stand in it."""


def without(version: int, frame: Buffer, scan: ProduceScanner, cut: Cut) -> bytes:
    """The request frame without those partitions, and without topics of which none is left. All else in it stays."""
    compact = version >= _FLEXIBLE_SINCE
    view = memoryview(frame)
    topics: list[bytes] = []
    for number, topic in enumerate(scan.topics):
        kept = [
            view[partition.start : topic.ends[position]]
            for position, partition in enumerate(topic.partitions)
            if (number, position) not in cut
        ]
        if kept or not topic.partitions:
            tags = view[topic.ends[-1] if topic.ends else topic.first : topic.end]
            topics.append(
                b"".join((view[topic.start : topic.partitions_start], array_count(len(kept), compact=compact), *kept, tags))
            )
    array = array_count(len(topics), compact=compact) + b"".join(topics)
    return spliced(frame, [(scan.array_start, scan.array_end, array)])


class ProduceResult(NamedTuple):
    """What a broker says of one partition, from `start` to `end` in its frame. `error` is Kafka's code."""

    error: int
    start: int
    end: int


class ProduceResults(NamedTuple):
    """A response: its partitions by topic (name's bytes or id) and index, the tags behind each topic's partitions, and where
    the array of topics stands."""

    partitions: Mapping[tuple[bytes, int], ProduceResult]
    tags: Mapping[bytes, bytes]
    start: int
    end: int


def read_results(version: int, frame: Buffer) -> ProduceResults:
    """The results of a whole response frame. Raises `InvalidFrame`."""
    compact = version >= _FLEXIBLE_SINCE
    reader = Reader.of_whole_response(frame, header_version=int(compact))
    array_start = reader.pos
    partitions: dict[tuple[bytes, int], ProduceResult] = {}
    tags: dict[bytes, bytes] = {}
    fixed = partition_bytes(version)
    for _ in range(reader.count(compact=compact)):
        key = read_topic(reader, version)
        for _ in range(reader.count(compact=compact)):
            start = reader.skip(fixed)
            if version >= _RECORD_ERRORS_SINCE:
                skip_errors(reader, compact)
            if compact:
                reader.skip_tags()
            index, error = _INDEX_ERROR.unpack_from(frame, start)
            partitions[key, index] = ProduceResult(error, start, reader.pos)
        if compact:
            start = reader.pos
            reader.skip_tags()
            tags[key] = bytes(frame[start : reader.pos])
    return ProduceResults(partitions, tags, array_start, reader.pos)


def merged(
    version: int, frame: Buffer, results: ProduceResults, topics: Sequence[ProducedTopic], cut: Cut, error: int, message: str
) -> bytes:
    """The broker's response frame with the results of all partitions in the request's order: `error` for those cut out."""
    compact = version >= _FLEXIBLE_SINCE
    no_tags = b"\0" if compact else b""
    view = memoryview(frame)
    parts: list[Buffer] = [array_count(len(topics), compact=compact)]
    for number, topic in enumerate(topics):
        elements: list[Buffer] = []
        for position, partition in enumerate(topic.partitions):
            if (number, position) in cut:
                elements.append(failed_partition(version, partition.partition_index, error, message))
            elif (result := results.partitions.get((topic.key, partition.partition_index))) is not None:
                elements.append(view[result.start : result.end])
        parts += (topic_field(version, topic.key), array_count(len(elements), compact=compact), *elements)
        parts.append(results.tags.get(topic.key, no_tags))
    return spliced(frame, [(results.start, results.end, b"".join(parts))])
