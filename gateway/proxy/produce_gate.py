"""The access of features to Produce requests: a delay of all producers, and a look at each request's topics."""

from collections.abc import Callable
from typing import Final, Protocol

from gateway.proxy.handler import Connection, ResponseHandler
from gateway.proxy.in_flight import TakeAnswer
from gateway.proxy.sequence_gaps import SequenceGaps
from gateway.quotas.policy import KindTotals
from protocol.headers import RequestHeader

NO_ANSWER: Final = "the request wants no answer (acks=0) that could say so"
"""The end of the reason for which a connection ends, because a partition is refused."""


class ProduceGate:
    """Open while `delay` is 0.0, which costs nothing. A caller that opens or closes it has the engine recall its buckets.

    A Produce request mutes its client for `delay` seconds. While `paused` is set, no Produce request goes to a broker. With
    `learning`, the state of the volumes is not known yet: requests that a pause would refuse wait for the first verdict.
    Two kinds of requests always pass: to a topic of Weir's own alone, and of clients that are exempt from volume quotas.
    """

    __slots__ = (
        "deferred_total",
        "delay",
        "learning",
        "paused",
        "refused_total",
        "throttled_total",
        "totals",
    )

    def __init__(self) -> None:
        self.delay = 0.0
        self.paused = False
        self.learning = False
        self.throttled_total = 0  # requests that went to their broker and were delayed
        self.refused_total = 0  # requests that were answered with an error
        self.deferred_total = 0  # deferrals: of requests without an answer (acks=0), and before the first verdict
        self.totals = KindTotals()

    @property
    def closed(self) -> bool:
        return self.delay > 0.0

    def count_delayed(self) -> float:
        """Count a request that goes to its broker, and return the seconds for which its client is muted."""
        self.throttled_total += 1
        self.totals.note(self.delay)
        return self.delay

    def count_deferred(self) -> float:
        """Count that a request is deferred, and return the seconds after which to look again."""
        self.deferred_total += 1
        return self.delay

    def count_refused(self) -> float:
        """Count a request that is refused, and return the seconds for which its client is muted."""
        self.refused_total += 1
        self.totals.note(self.delay)
        return self.delay


class InspectedProduce(ResponseHandler, Protocol):
    """One Produce request. The broker gets all of it as it comes, and `scan` sees it pass.

    With `needs_whole`, the caller collects the request instead, and `decide` returns the part that the broker gets.
    """

    @property
    def needs_whole(self) -> bool: ...

    @property
    def ends(self) -> bool:
        """True if `decide` has taken something out of a request with acks=0. The connection then ends behind the request, as
        Kafka has it for an error of such a request."""
        ...

    def decide(self, frame: bytes, body_offset: int, now: float) -> bytes | None:
        """The bytes that the broker gets of the whole request; None if it gets nothing."""
        ...

    @property
    def kept(self) -> int:
        """After `decide`, the topics and partitions that stay in memory until the broker's answer."""
        ...

    def scan(self, data: bytes, start: int, end: int, most: int) -> tuple[int, int]:
        """`data[start:end]` passes, beginning with the request's body. Raises ProtocolError.

        Returns the offset behind the scanned bytes, below `end` if all cost more than `most`, and their cost.
        """
        ...

    def answer(self, now: float) -> bytes:
        """The answer to a request of which the broker gets nothing."""
        ...

    @property
    def take_results(self) -> TakeAnswer | None:
        """Takes the broker's answer to a request with acks=0, which goes on with acks=1. None: it goes on as it came."""
        ...


class ProduceInspector(Protocol):
    """Looks into the Produce requests of one connection."""

    def open(self, header: RequestHeader, body_offset: int, frame_bytes: int, now: float) -> InspectedProduce:
        """Begin with a request of `frame_bytes` with its length, whose body begins at `body_offset` of its frame."""
        ...


class ProducedTopics:
    """Switches the look at topics on: `make_inspector` makes an inspector for each connection, and is None while it is off.

    A caller that changes `make_inspector` has the engine recall its buckets, so that sessions notice.
    """

    __slots__ = ("make_inspector",)

    def __init__(self) -> None:
        self.make_inspector: Callable[[Connection, SequenceGaps], ProduceInspector] | None = None
