"""Follows the bytes of a gateway's connections to brokers, to compare them with the charges of the gateway's buckets."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.proxy.connection import Session
from loadtest.simulation import kafka_messages as kafka
from loadtest.simulation.brokers import Cluster
from loadtest.simulation.clients import client_of
from loadtest.simulation.kafka_messages import Api, Head

_HEAD_BYTES = 14
_CHARGED_FROM = 24
"""The bytes of a Fetch response from which the gateway charges it."""


@dataclass(slots=True)
class Forwarded:
    """The totals of one gateway: Produce bytes by client and time, Fetch bytes, and partitions of CreateTopics.

    Bytes of Produce requests without a response (acks=0) are in `unanswered`. `created_least` counts the topics of whole
    responses. `created_most` counts the other requests as well, with the topics that the broker may refuse. `appended` has the
    topic, the time and the bytes of each batch that a broker has accepted.
    """

    produced: defaultdict[int, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    unanswered: defaultdict[int, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    fetched: int = 0
    created_least: int = 0
    created_most: int = 0
    appended: list[tuple[str, float, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Waiting:
    head: Head
    throttled: bool  # a Fetch that the gateway has reduced
    partitions: int
    refused: int


class UpstreamTap:
    """One connection. `paused` returns True while a pause of the volumes refuses every new Produce."""

    def __init__(self, totals: Forwarded, cluster: Cluster, session: Session, paused: Callable[[], bool]) -> None:
        self.session = session
        assert session._dialing is not None
        self._early = session._dialing.early  # the bytes that wait for the connection
        self.connected = False
        self.broken = False
        self._totals = totals
        self._cluster = cluster
        self._paused = paused
        self._pending = b""  # the start of a request whose header is not complete
        self._rest = 0  # bytes of the current request that are still to come
        self._client: int | None = None  # of the current request, if it is a Produce
        self._acks = 0
        self._waiting: deque[_Waiting] = deque()
        self._response = b""
        self._response_rest = 0
        self._answered: _Waiting | None = None  # its response has begun
        self.forwarded: list[int] = []

    # Requests.

    def wrote(self, data: bytes) -> None:
        at, end = 0, len(data)
        if self._rest:
            at = min(self._rest, end)
            self._rest -= at
            self._count(at)
        data = self._pending + data[at:] if self._pending else data[at:]
        self._pending = b""
        at, end = 0, len(data)
        while at < end:
            length = end - at
            if length < _HEAD_BYTES or length < _HEAD_BYTES + int.from_bytes(data[at + 12 : at + 14], "big"):
                self._pending = data[at:]
                return
            size = int.from_bytes(data[at : at + 4], "big")
            self._begin(data[at : min(end, at + 4 + size)])
            arrived = min(size, length - 4)
            self._count(arrived)
            self._rest = size - arrived
            at += 4 + size

    def _begin(self, frame: bytes) -> None:
        head = kafka.head_of(frame)
        self._client = client_of(head.number) if head.api == Api.PRODUCE else None
        if not (head.api == Api.METADATA and head.version == kafka.OWN_METADATA):
            self.forwarded.append(head.number)
        throttled, partitions, refused = False, 0, 0
        if head.api == Api.PRODUCE:
            sent = self._cluster.sent.get(head.number)
            self._acks = -1 if sent is None else sent.acks
            if sent is None or sent.acks == 0:
                return
            if self._paused() and not self._early:  # the first bytes were taken before the connection
                self._cluster.verdicts.fail("forwarded in a pause", f"Produce {head.number}")
        elif head.api == Api.FETCH:
            max_wait, max_bytes, _, _ = kafka.fetch_limits(frame, head)
            throttled = (max_wait, max_bytes) == (0, 1)
        elif head.api == Api.CREATE_TOPICS:
            topics = kafka.topics_in(frame, head)
            partitions = sum(count for name, count in topics if not name.startswith(b"bad"))
            refused = sum(count for _, count in topics) - partitions
            self._totals.created_most += partitions + refused
        self._waiting.append(_Waiting(head, throttled, partitions, refused))

    def _count(self, arrived: int) -> None:
        if self._client is not None and arrived:
            uses = self._totals.produced if self._acks else self._totals.unanswered
            uses[self._client].append((self._cluster.network.now(), arrived))

    # Responses.

    def read(self, data: bytes) -> None:
        at = min(self._response_rest, len(data))
        self._response_rest -= at
        if at and not self._response_rest:
            self._settle()
        data = self._response + data[at:]
        self._response = b""
        while data:
            size = int.from_bytes(data[:4], "big") if len(data) >= 4 else 0
            if len(data) < 4 or (len(data) < _CHARGED_FROM and len(data) < 4 + size):
                self._response = data
                return
            if self._waiting:  # otherwise the gateway closes the connection
                self._answered = self._waiting.popleft()
                if self._answered.head.api == Api.FETCH and not self._answered.throttled:
                    self._totals.fetched += size
            self._response_rest = max(0, 4 + size - len(data))
            if not self._response_rest:
                self._settle()
            data = data[4 + size :]

    def _settle(self) -> None:
        """All of a response has come. The tokens of refused topics are given back now."""
        answered, self._answered = self._answered, None
        if answered is not None:
            self._totals.created_least += answered.partitions
            self._totals.created_most -= answered.refused
            number, now = answered.head.number, self._cluster.network.now()
            batches = self._cluster.batches
            for topic in sorted(batches.forwarded.get(number, ())):
                self._totals.appended.append((topic, now, batches.sent[number][topic]))

    def unsent_bytes(self) -> Counter[int]:
        """Bytes of Produce requests, by client, that are charged, and that no broker got: no connection was made."""
        found: Counter[int] = Counter()
        for frame in self._unsent():
            if int.from_bytes(frame[4:6], "big") == Api.PRODUCE:
                found[client_of(int.from_bytes(frame[8:12], "big"))] += len(frame) - 4
        return found

    def unsent_partitions(self) -> int:
        """As `unsent_bytes`, for the partitions of CreateTopics."""
        heads = [(frame, kafka.head_of(frame)) for frame in self._unsent()]
        wanted = [kafka.topics_in(frame, head) for frame, head in heads if head.api == Api.CREATE_TOPICS]
        return sum(count for topics in wanted for _, count in topics)

    def _unsent(self) -> list[bytes]:
        """The requests that wait for a connection that was never made. The last one may be incomplete."""
        frames, at = [], 0
        early = b"" if self.connected else b"".join(bytes(data) for data in self._early)
        while at < len(early):
            end = at + 4 + int.from_bytes(early[at : at + 4], "big")
            frames.append(early[at:end])
            at = end
        return frames
