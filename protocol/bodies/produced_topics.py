"""Scans the topics and partitions of a Produce request as it streams by, removes partitions, and merges responses.

Layouts: ``ProduceRequest.json`` and ``ProduceResponse.json`` of Kafka 4.3 (v3-13), KIP-896 for older versions.
"""

import sys
from collections.abc import Container, Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

from protocol.bodies.produce import (
    FLEXIBLE_SINCE,
    MAX_PRODUCE_ELEMENTS,
    RECORD_ERRORS_SINCE,
    TIMEOUT_BYTES,
    TRANSACTIONAL_SINCE,
    Partitions,
    failed_partition,
    further_message,
    partition_bytes,
    read_topic,
    skip_errors,
    topic_field,
)
from protocol.cursor import Buffer, Reader
from protocol.encoding import array_count, spliced
from protocol.errors import Incomplete, InvalidFrame

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

_UNCOUNTED: Final = -1  # the scanner has not read the number of tagged fields yet


class ProducedPartition:
    """A partition of a request, with offsets into the frame. Its records are `size` bytes from `records`."""

    __slots__ = ("partition_index", "records", "size", "start")

    def __init__(self, partition_index: int, start: int, records: int, size: int) -> None:
        self.partition_index = partition_index
        self.start = start
        self.records = records
        self.size = size


class ProducedTopic:
    """A topic of a request. `key` is its name (UTF-8) or, from v13, its id.

    Offsets into the frame: the topic starts at `start`, its array of partitions at `partitions_start`, the first partition
    at `first`. Partition i ends at `ends[i]`, the topic with its tagged fields at `end`.
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
    """Scans one Produce request that arrives in chunks of any length. Keeps no records.

    The scanner reads a byte once, or twice if a chunk ends inside a short field. So a request in tiny chunks costs no more
    than a multiple of its length.

    Offsets count from the frame's first byte, which belongs to the length field. The array of topics spans `array_start` to
    `array_end`. `acks` and `topics` are complete once `done` is True, but for topics that `PartitionSizes.drain` has taken. The
    scanner ignores the bytes behind the topics.
    """

    __slots__ = (
        "_compact", "_elements_left", "_frame_bytes", "_left", "_partial", "_partitions_left", "_skip", "_step", "_tags_left",
        "_topics_left", "_version", "_wanted", "acks", "array_end", "array_start", "steps_left", "topics",
    )  # fmt: skip

    def __init__(self, version: int, frame_bytes: int, body_offset: int) -> None:
        self._version = version
        self._compact = version >= FLEXIBLE_SINCE
        self._frame_bytes = frame_bytes
        self._left = frame_bytes - body_offset  # unread bytes of the frame
        self._partial = bytearray()  # the first bytes of an incomplete field
        self._wanted = 0  # the length that _partial needs before another attempt can succeed
        self._skip = 0  # bytes of records or of a tagged field that have not arrived
        self._tags_left = _UNCOUNTED
        self._elements_left = MAX_PRODUCE_ELEMENTS
        self._step = _HEAD
        self._topics_left = 0
        self._partitions_left = 0
        self.steps_left = 0
        self.acks = -1
        self.topics: list[ProducedTopic] = []
        self.array_start = 0
        self.array_end = 0

    @property
    def done(self) -> bool:
        return self._step == _DONE

    def feed(self, data: Buffer, start: int, end: int, steps: int = sys.maxsize) -> int:
        """Scan `data[start:end]`, the next bytes of the frame; the first call starts at the body.

        Returns the offset behind the scanned bytes: below `end` if they take more than `steps`. A partition or a topic is two
        steps, or three in a flexible version, and each tagged field one. `steps_left` are those of the last call.

        Raises `InvalidFrame` if a field exceeds the frame. The scanner must not be used after that.
        """
        self.steps_left = steps
        if self._step == _DONE:
            return end
        if self._skip:
            skipped = min(self._skip, end - start)
            self._skip -= skipped
            self._left -= skipped
            start += skipped
        if self._partial:
            self._partial += memoryview(data)[start:end]
            if len(self._partial) < self._wanted:
                return end
            data, self._partial = self._partial, bytearray()
            moved = end - len(data)
            start, end = 0, len(data)
        else:
            moved = 0
        reader = Reader(data, start, end, start + self._left, compact=self._compact)
        reader.elements_left = self._elements_left
        if end > reader.end:
            reader.seen = reader.end
        while self._step != _DONE and not self._skip and self.steps_left:
            pos = reader.pos
            self.steps_left -= 1
            try:
                self._take(reader)
            except Incomplete as cut:
                self._wanted = cut.wanted - pos
                self._partial = bytearray(memoryview(data)[pos:end])
                reader.pos = pos
                self._left = reader.end - pos
                return moved + end
        self._left = reader.end - reader.pos
        self._elements_left = reader.elements_left
        return moved + (end if self._step == _DONE or self._skip else reader.pos)

    def _take(self, reader: Reader) -> None:
        """Read the next few fields. The state changes only after all of them have arrived."""
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
            if self._version >= TRANSACTIONAL_SINCE:
                reader.skip_string()
            acks = reader.int16()
            reader.skip(TIMEOUT_BYTES)
            array_start = reader.pos
            self._topics_left = reader.count()
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
        count = reader.count()
        offset = self._offset(reader, start)
        moved = offset - start
        self.topics.append(ProducedTopic(key, offset, partitions_start + moved, reader.pos + moved))
        self._partitions_left = count
        self._step = _PARTITION if count else _TOPIC_TAGS

    def _take_partition(self, reader: Reader) -> None:
        start = reader.pos
        index = reader.int32()
        size = max(reader.size(wide=True), 0)
        records = reader.pos
        moved = self._offset(reader, start) - start
        self.topics[-1].partitions.append(ProducedPartition(index, start + moved, records + moved, size))
        self._step = _PARTITION_TAGS
        self._skip_ahead(reader, size)

    def _take_tags(self, reader: Reader) -> None:
        """Read the number of tagged fields, or skip one of them."""
        if self._tags_left == _UNCOUNTED:
            self._tags_left = reader.tag_count()
            return
        reader.uvarint()
        self._skip_ahead(reader, reader.uvarint())
        self._tags_left -= 1

    def _skip_ahead(self, reader: Reader, size: int) -> None:
        """Skip `size` bytes, part of which may arrive in later chunks."""
        here = min(size, reader.seen - reader.pos)
        if size > reader.end - reader.pos:
            here = size  # so that skip raises
        reader.skip(here)
        self._skip = size - here

    def _offset(self, reader: Reader, pos: int) -> int:
        return self._frame_bytes - (reader.end - pos)


def scan_whole(version: int, frame: Buffer, body_offset: int) -> ProduceScanner:
    """Scan a whole request frame. Raises `InvalidFrame`."""
    scanner = ProduceScanner(version, len(frame), body_offset)
    scanner.feed(frame, body_offset, len(frame))
    if not scanner.done:
        raise InvalidFrame("overrun", "a Produce request ends inside its topics")
    return scanner


def indexes_of(topics: Sequence[ProducedTopic]) -> Partitions:
    """The partitions of the topics, as `refuse` takes them."""
    return [(topic.key, [partition.partition_index for partition in topic.partitions]) for topic in topics]


def elements_of(topics: Sequence[ProducedTopic]) -> int:
    """The number of topics and partitions."""
    return sum([1 + len(topic.partitions) for topic in topics])


def producer_sequence(frame: Buffer, partition: ProducedPartition) -> tuple[int, int, int] | None:
    """(producer id, epoch, base sequence) of a partition's records; None if the producer is not idempotent."""
    start = partition.records
    if partition.size < _BATCH_HEAD_BYTES or frame[start + _MAGIC_OFFSET] != _MAGIC:
        return None
    producer_id, epoch, sequence = _PRODUCER.unpack_from(frame, start + _PRODUCER_OFFSET)
    return None if producer_id < 0 else (producer_id, epoch, sequence)


Cut = Container[tuple[int, int]]
"""Partitions to remove from a request: (position of the topic, position of the partition in that topic)."""


def remainder(version: int, frame: bytes, scan: ProduceScanner, cut: set[tuple[int, int]]) -> bytes | None:
    """The request that the broker gets: `frame` itself if nothing is cut, None if all partitions are, else as `without`."""
    if not cut:
        return frame
    if len(cut) == sum([len(topic.partitions) for topic in scan.topics]):
        return None
    return without(version, frame, scan, cut)


def without(version: int, frame: Buffer, scan: ProduceScanner, cut: Cut) -> bytes:
    """The request frame without the partitions in `cut`, and without topics that have no partition left."""
    compact = version >= FLEXIBLE_SINCE
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
    """A broker's result for one partition, from `start` to `end` in its frame. `error` is Kafka's code."""

    error: int
    start: int
    end: int


class ProduceResults(NamedTuple):
    """The decoded results of a response.

    `partitions` maps (topic name as bytes or id, index) to the result. `tags` holds the tagged fields of each topic. The
    array of topics spans `start` to `end`.
    """

    partitions: Mapping[tuple[bytes, int], ProduceResult]
    tags: Mapping[bytes, bytes]
    start: int
    end: int


def read_results(version: int, frame: Buffer) -> ProduceResults:
    """The results of a whole response frame. Raises `InvalidFrame`."""
    compact = version >= FLEXIBLE_SINCE
    reader = Reader.of_whole_response(frame, header_version=int(compact))
    array_start = reader.pos
    partitions: dict[tuple[bytes, int], ProduceResult] = {}
    tags: dict[bytes, bytes] = {}
    fixed = partition_bytes(version)
    for _ in range(reader.count()):
        key = read_topic(reader, version)
        for _ in range(reader.count()):
            start = reader.skip(fixed)
            if version >= RECORD_ERRORS_SINCE:
                skip_errors(reader)
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
    """The broker's response with results for all partitions in the request's order; `error` for those in `cut`."""
    compact = version >= FLEXIBLE_SINCE
    no_tags = b"\0" if compact else b""
    view = memoryview(frame)
    text: str | None = message
    further = further_message(message, sum([len(topic.partitions) for topic in topics]))
    parts: list[Buffer] = [array_count(len(topics), compact=compact)]
    for number, topic in enumerate(topics):
        elements: list[Buffer] = []
        for position, partition in enumerate(topic.partitions):
            if (number, position) in cut:
                elements.append(failed_partition(version, partition.partition_index, error, text))
                text = further
            elif (result := results.partitions.get((topic.key, partition.partition_index))) is not None:
                elements.append(view[result.start : result.end])
        parts += (topic_field(version, topic.key), array_count(len(elements), compact=compact), *elements)
        parts.append(results.tags.get(topic.key, no_tags))
    return spliced(frame, [(results.start, results.end, b"".join(parts))])
