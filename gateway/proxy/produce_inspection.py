"""The interface of what looks into Produce requests, by topic and partition, as they pass by."""

from collections.abc import Callable
from typing import Protocol

from gateway.proxy.handler import Answering, Connection
from protocol.headers import RequestHeader


class EndConnection(Exception):
    """The connection is to be closed, after what is already written has gone out; the message says why.

    `limit` is the reason under which the connection counts as rejected, "" where no limit closes it.
    """

    def __init__(self, message: str, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit


class ProduceExchange(Answering, Protocol):
    """One Produce request that is looked at. Either all of it goes on as it comes, and `scan` sees it pass by, or (`whole`) it
    is collected, and `decide` says what goes on."""

    @property
    def whole(self) -> bool:
        """Whether the request has to be collected."""
        ...

    @property
    def ends(self) -> bool:
        """Whether `decide` has taken something out of a request that gets no answer (acks=0): the connection ends behind
        it, as Kafka has it for an error of such a request."""
        ...

    def decide(self, frame: bytes, body_offset: int, now: float) -> bytes | None:
        """What the broker gets of the whole request; None if it gets nothing."""
        ...

    def scan(self, data: bytes, start: int, end: int, now: float) -> None:
        """`data[start:end]` has passed, first of all from the body's beginning on. Raises ProtocolError."""
        ...


class Producer(Protocol):
    """What looks into the Produce requests of one connection."""

    @property
    def pending(self) -> bool:
        """Whether it has to see the next requests even if topics are no longer looked at."""
        ...

    def open(self, header: RequestHeader, body_offset: int, frame_bytes: int, now: float) -> ProduceExchange:
        """The exchange for a request whose frame, of `frame_bytes`, has its body at `body_offset`."""
        ...


class ProducedTopics:
    """Whether the topics of Produce requests are looked at: with an `opener`, which makes a `Producer` for a connection.

    Whoever changes that has the engine recall its buckets, so that sessions find out.
    """

    __slots__ = ("opener",)

    def __init__(self) -> None:
        self.opener: Callable[[Connection], Producer] | None = None
