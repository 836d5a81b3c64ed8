"""Produce requests under topic quotas: counts their bytes, and rejects partitions of topics that are over their share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from gateway.features.topic_quotas.producer_turns import ProducerTurns, TopicProducer
from gateway.features.topic_quotas.rules import TopicQuotas
from gateway.features.topic_quotas.scoped_quotas import name_at_broker
from gateway.features.topic_quotas.topic_meters import WINDOWED, TopicUse
from gateway.proxy.collected import KeptBytes
from gateway.proxy.handler import Connection
from gateway.proxy.identity import Client
from gateway.proxy.in_flight import TakeAnswer
from gateway.proxy.produce_gate import NO_ANSWER
from gateway.proxy.sequence_gaps import SequenceGaps
from gateway.proxy.wire import Origin
from gateway.quotas.entity import TOPICS
from gateway.quotas.owned_places import owner_of
from protocol.bodies.partition_sizes import PartitionSizes
from protocol.bodies.produce import TOPIC_ID_SINCE, refuse
from protocol.bodies.produced_topics import (
    ProducedTopic,
    ProduceResults,
    ProduceScanner,
    elements_of,
    indexes_of,
    merged,
    read_results,
    remainder,
    scan_whole,
)
from protocol.error_codes import ErrorCode, name_of
from protocol.headers import RequestHeader

QUOTA: Final = "quota"
"""The reason of Weir's own rejections. All other reasons are names of the broker's errors."""

MESSAGE: Final = "Weir: the topic is, or was just now, over its share of total.bytes.in.per.sec.threshold; try again later"

STEP_COST: Final = 4
"""The work for a step of the scanner, in bytes that handlers parse."""

_APPENDED: Final = frozenset({ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
"""REQUEST_TIMED_OUT follows a wait for the replicas."""

_INVALID: Final = frozenset({ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, ErrorCode.INVALID_RECORD})
"""The errors of `ProduceRequest.validateRecords`.

If a partition is named twice, the error of its invalid records hides that the broker has appended the valid ones.
"""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Bytes of one topic that were not appended. If not `enforced`, Weir only would have rejected them.

    `reason` is `quota` or the broker's error. `client` sent the bytes; `origin` has the addresses of its connection. Rates and
    limits are in bytes per second, of the topic and of all topics.
    """

    topic: str
    reason: str
    size: int
    client: Client
    origin: Origin
    rate: float
    limit: float
    total_rate: float
    total_limit: float
    enforced: bool = True


class TopicInspection:
    """The part that all connections share: quotas, turns, Kafka's code for rejected bytes, and the callback for rejections.

    With `at_broker`, each broker has quotas of its own, and `quotas` are not used.
    """

    def __init__(self, quotas: TopicQuotas, error_code: int, on_rejected: Callable[[Rejection, float], None]) -> None:
        self.quotas = quotas
        self.turns = ProducerTurns()
        self.at_broker: Callable[[int], TopicQuotas] | None = None
        self.error_code = error_code
        self.on_rejected = on_rejected

    def open(self, connection: Connection, gaps: SequenceGaps) -> "TopicInspector":
        return TopicInspector(self, connection, gaps)


class TopicInspector:
    """The `ProduceInspector` of one connection.

    It also rejects the batches of idempotent producers that are behind a refused one (`SequenceGaps`).

    A broker does not answer a request with acks=0. It closes the connection if it refuses a partition, and has appended the
    others. So the broker gets the request with acks=1, and its answer says what it has appended. Its work is the same.
    """

    def __init__(self, shared: TopicInspection, connection: Connection, gaps: SequenceGaps) -> None:
        self.shared = shared
        self.client = connection.client
        self.connection = connection
        self._gaps = gaps
        self._producer: TopicProducer | None = None  # in the turns of its topics

    def end_for(self, error: int) -> None:
        """End the connection for the broker's error in a request with acks=0, as Kafka does."""
        name = name_of(error)
        self.connection.end(f"the broker refuses a partition ({name}), and {NO_ANSWER}")

    def count(self, quotas: TopicQuotas, key: bytes, size: int, error: int, now: float, *, by_id: bool) -> None:
        """Count bytes of a topic by the broker's result."""
        if quotas.own.is_own(key):
            return
        if error in _APPENDED:
            unenforced = not quotas.settings.enforce and not self.client.exempt_from(TOPICS)
            would_reject = unenforced and quotas.rejects(quotas.find(key, by_id=by_id), now)
            use = quotas.appended(key, size, now, by_id=by_id)
            if would_reject:
                quotas.throttled(use, size)
                self.report(quotas, use, QUOTA, size, now, enforced=False)
            return
        reason = name_of(error)
        self.report(quotas, quotas.refused(key, size, reason, now, by_id=by_id), reason, size, now)

    def report(self, quotas: TopicQuotas, use: TopicUse, reason: str, size: int, now: float, *, enforced: bool = True) -> None:
        """Report bytes that were not appended."""
        rejection = Rejection(
            topic=use.name,
            reason=reason,
            size=size,
            client=self.client,
            origin=self.connection.throttle.origin,
            rate=use.measure(now),
            limit=quotas.threshold(use.name),
            total_rate=quotas.rate(now),
            total_limit=quotas.settings.total,
            enforced=enforced,
        )
        self.shared.on_rejected(rejection, now)

    def open(self, header: RequestHeader, body_offset: int, frame_bytes: int, now: float) -> "InspectedRequest":
        at_broker = self.shared.at_broker
        quotas = self.shared.quotas if at_broker is None else at_broker(self.client.broker)
        rejects = quotas.settings.enforce and (quotas.over(now) or self.shared.turns.contested(now))
        needs_whole = self._gaps.pending or rejects
        return InspectedRequest(self, quotas, header, body_offset, frame_bytes, needs_whole)

    def reject(
        self, quotas: TopicQuotas, frame: bytes, topics: Sequence[ProducedTopic], now: float, *, by_id: bool, takes_turns: bool
    ) -> set[tuple[int, int]]:
        """The partitions to reject, as (position of the topic, position of the partition). Raises EndConnection."""
        exempt = not quotas.settings.enforce or self.client.exempt_from(TOPICS)
        cut: set[tuple[int, int]] = set()
        for number, topic in enumerate(topics):
            spared = exempt or quotas.own.is_own(topic.key)
            over = not spared and self._refuses(quotas, topic, now, by_id=by_id, takes_turns=takes_turns)
            for position, partition in enumerate(topic.partitions):
                if self._gaps.refuses(frame, topic.key, partition, refused=over):
                    cut.add((number, position))
        self._gaps.settle()
        return cut

    def _refuses(self, quotas: TopicQuotas, topic: ProducedTopic, now: float, *, by_id: bool, takes_turns: bool) -> bool:
        use = quotas.find(topic.key, by_id=by_id)
        over = quotas.rejects(use, now)
        turns = self.shared.turns
        if use is None or not takes_turns or not (over or turns.contested(now)):
            return over
        if self._producer is None:
            self._producer = TopicProducer(owner_of(self.client.user, self.client.ip))
            self.connection.on_close += (partial(turns.leave, self._producer),)
        size = sum([partition.size for partition in topic.partitions])
        name = use.name if self.shared.at_broker is None else name_at_broker(self.client.broker, use.name)
        return turns.refuses(name, use, self._producer, size, quotas.threshold(use.name), now, over=over)


class InspectedRequest:
    """One Produce request: an `InspectedProduce`."""

    def __init__(
        self,
        inspector: TopicInspector,
        quotas: TopicQuotas,
        header: RequestHeader,
        body_offset: int,
        frame_bytes: int,
        needs_whole: bool,
    ) -> None:
        self.needs_whole = needs_whole
        self._quotas = quotas
        self._inspector = inspector
        self._shared = inspector.shared
        self._version = header.api_version
        self._correlation_id = header.correlation_id
        self._by_id = header.api_version >= TOPIC_ID_SINCE
        self._scanner = ProduceScanner(header.api_version, frame_bytes, body_offset)
        self._cut: set[tuple[int, int]] = set()
        self._sizes = PartitionSizes()  # of the forwarded partitions, in place of the scanner's
        self._kept_bytes = KeptBytes(inspector.connection.keep)

    @property
    def ends(self) -> bool:
        return self._scanner.acks == 0 and bool(self._cut)

    @property
    def kept(self) -> int:
        return elements_of(self._scanner.topics)

    def scan(self, data: bytes, start: int, end: int, most: int) -> tuple[int, int]:
        steps = most // STEP_COST
        scanned = self._scanner.feed(data, start, end, steps)
        self._sizes.drain(self._scanner.topics)
        self._kept_bytes.are(self._sizes.kept_bytes)
        return scanned, STEP_COST * (steps - self._scanner.steps_left)

    def decide(self, frame: bytes, body_offset: int, now: float) -> bytes | None:
        """The request without the rejected partitions; None if all partitions are rejected."""
        self._scanner = scan = scan_whole(self._version, frame, body_offset)
        # The rate over a minute keeps a topic rejected for at least 5 s. All producers come again in that time, so it needs no
        # turns. With acks=0, a rejection would end the connection.
        takes_turns = scan.acks != 0 and self._quotas.settings.meter in WINDOWED
        self._cut = cut = self._inspector.reject(
            self._quotas, frame, scan.topics, now, by_id=self._by_id, takes_turns=takes_turns
        )
        self._count_rejected(now)
        self._sizes = PartitionSizes(scan.topics, cut)
        if not cut:
            scan.topics = []  # only the answer to a rejected one needs the topics themselves
        rest = remainder(self._version, frame, scan, cut)
        if rest is not None:
            self._kept_bytes.are(self._sizes.kept_bytes)
        return rest

    def response(self, frame: bytes, now: float) -> bytes:
        """Count the bytes of each topic by the broker's results, and add the results of the rejected partitions."""
        results = self._count(frame, now)
        if not self._cut:
            return frame
        return merged(self._version, frame, results, self._scanner.topics, self._cut, self._shared.error_code, MESSAGE)

    @property
    def take_results(self) -> TakeAnswer | None:
        return self._take_results

    def _take_results(self, frame: bytes, now: float) -> None:
        for result in self._count(frame, now).partitions.values():
            if result.error != ErrorCode.NONE:
                self._inspector.end_for(result.error)
                return

    def _count(self, frame: bytes, now: float) -> ProduceResults:
        """Count the bytes of each topic by the broker's results."""
        results = read_results(self._version, frame)
        # Of a partition that is there twice, the broker appends the last valid records only.
        last: dict[tuple[bytes, int], int] = {}
        largest: dict[tuple[bytes, int], int] = {}  # of partitions that are there twice
        for key, index, size in self._sizes:
            partition = key, index
            if partition in last:
                largest[partition] = max(size, last[partition], largest.get(partition, 0))
            last[partition] = size
        sizes: dict[tuple[bytes, int], int] = {}  # by the topic's key and the broker's error
        for partition, size in last.items():
            result = results.partitions.get(partition)
            if result is not None:
                key, error = partition[0], result.error
                if error in _INVALID and partition in largest:
                    size, error = largest[partition], ErrorCode.NONE
                sizes[key, error] = sizes.get((key, error), 0) + size
        for (key, error), size in sizes.items():
            self._inspector.count(self._quotas, key, size, error, now, by_id=self._by_id)
        self._kept_bytes.are(0)
        return results

    def answer(self, now: float) -> bytes:  # noqa: ARG002
        topics = indexes_of(self._scanner.topics)
        return refuse(self._version, self._correlation_id, topics, self._shared.error_code, MESSAGE)

    def _count_rejected(self, now: float) -> None:
        quotas = self._quotas
        for number, topic in enumerate(self._scanner.topics):
            sizes = [part.size for position, part in enumerate(topic.partitions) if (number, position) in self._cut]
            use = quotas.find(topic.key, by_id=self._by_id)
            if sizes and use is not None:
                quotas.throttled(use, sum(sizes))
                self._inspector.report(quotas, use, QUOTA, sum(sizes), now)
