"""Refused batches of idempotent producers: later batches must not overtake them."""

from collections.abc import Sequence
from typing import Final

from gateway.proxy.collected import Budget, Holder
from protocol.bodies.produce import refuse
from protocol.bodies.produced_topics import (
    ProducedPartition,
    ProducedTopic,
    elements_of,
    indexes_of,
    merged,
    producer_sequence,
    read_results,
    remainder,
    scan_whole,
)
from protocol.bodies.topic_lists import MAX_NAME_BYTES
from protocol.error_codes import ErrorCode
from protocol.headers import RequestHeader

MAX_GAPS: Final = 10_000
"""Per connection: partitions for which an idempotent producer has not yet resent a refused batch."""

GAP_BYTES: Final = 300
"""The memory of one, without the name of its topic."""

BEHIND_MESSAGE: Final = "Weir: an earlier batch of this producer was refused and has to come first; try again later"


class SequenceGaps(Holder):
    """The first refused batch of an idempotent producer for each partition of one connection.

    An idempotent producer may have sent more batches after a refused batch. Weir refuses these batches too, until the producer
    resends the first one, or begins again with a new epoch or producer id. Otherwise a broker that does not know the producer
    would accept any sequence number as the first, and the order would be lost.

    Producers resend in order. If a later batch comes a second time, and the first one has not, the gap is over. The producer
    has sent the first one through another connection, or has given it up.
    """

    __slots__ = ("_bytes", "_missing")

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self._bytes = 0
        # (producer id, epoch, first refused sequence, latest refused sequence) by (topic's name or id, partition)
        self._missing: dict[tuple[bytes, int], tuple[int, int, int, int]] = {}

    @property
    def pending(self) -> bool:
        """True until the producers have resent all refused batches."""
        return bool(self._missing)

    def refuses(self, frame: bytes, topic: bytes, partition: ProducedPartition, *, refused: bool) -> bool:
        """True if the broker must not get the partition's batch. `refused` batches are noted as missing.

        The caller calls `settle` after the request's last batch.
        """
        sequence = producer_sequence(frame, partition)
        if sequence is None or len(topic) > MAX_NAME_BYTES:  # no broker takes a batch for a longer name, so none is awaited
            return refused
        producer_id, epoch, first = sequence
        place = (topic, partition.partition_index)
        gap_producer, gap_epoch, missing, latest = self._missing.get(place, (*sequence, first))
        same = gap_producer == producer_id and gap_epoch == epoch
        if same and _is_behind(first, latest):
            self._missing[place] = (producer_id, epoch, missing, first)
            return True
        if refused:
            if place not in self._missing:
                if len(self._missing) >= MAX_GAPS:
                    self._forget(next(iter(self._missing)))
                self._bytes += GAP_BYTES + len(topic)
            self._missing[place] = (*sequence, first)
        elif place in self._missing and not (same and _is_behind(missing, first)):
            self._forget(place)
        return refused

    def _forget(self, place: tuple[bytes, int]) -> None:
        del self._missing[place]
        self._bytes -= GAP_BYTES + len(place[0])

    def settle(self) -> None:
        """Count the gaps. Raises EndConnection if all connections together have too many, and this one is the heaviest."""
        self._count(self._bytes)
        self._budget.check(self)

    def note(self, frame: bytes, topics: Sequence[ProducedTopic]) -> None:
        """Note that a whole request is refused."""
        for topic in topics:
            for partition in topic.partitions:
                self.refuses(frame, topic.key, partition, refused=True)
        self.settle()


def _is_behind(sequence: int, other: int) -> bool:
    """True if `sequence` is later than `other`; sequence numbers wrap after 2^31 - 1."""
    return 0 < (sequence - other) % 2**31 < 2**30


class GapRequest:
    """One Produce request while gaps are pending: an `InspectedProduce` that refuses the batches behind a gap."""

    def __init__(self, gaps: SequenceGaps, header: RequestHeader) -> None:
        self.needs_whole = True
        self._gaps = gaps
        self._version = header.api_version
        self._correlation_id = header.correlation_id
        self._acks = -1
        self._topics: list[ProducedTopic] = []
        self._cut: set[tuple[int, int]] = set()

    @property
    def ends(self) -> bool:
        return self._acks == 0 and bool(self._cut)

    @property
    def kept(self) -> int:
        return elements_of(self._topics)

    @property
    def take_results(self) -> None:
        """Nobody counts the records."""

    def scan(self, data: bytes, start: int, end: int, most: int) -> tuple[int, int]:  # noqa: ARG002
        """Never called, as `needs_whole` is True."""
        return end, 0

    def decide(self, frame: bytes, body_offset: int, now: float) -> bytes | None:  # noqa: ARG002
        scan = scan_whole(self._version, frame, body_offset)
        self._acks = scan.acks
        self._cut = cut = {
            (number, position)
            for number, topic in enumerate(scan.topics)
            for position, partition in enumerate(topic.partitions)
            if self._gaps.refuses(frame, topic.key, partition, refused=False)
        }
        self._gaps.settle()
        if cut:
            self._topics = scan.topics
        return remainder(self._version, frame, scan, cut)

    def response(self, frame: bytes, now: float) -> bytes:  # noqa: ARG002
        if not self._cut:
            return frame
        results = read_results(self._version, frame)
        return merged(self._version, frame, results, self._topics, self._cut, ErrorCode.NOT_ENOUGH_REPLICAS, BEHIND_MESSAGE)

    def answer(self, now: float) -> bytes:  # noqa: ARG002
        return refuse(
            self._version, self._correlation_id, indexes_of(self._topics), ErrorCode.NOT_ENOUGH_REPLICAS, BEHIND_MESSAGE
        )
