"""The interface of a feature that looks into Produce requests, by topic and partition."""

from collections.abc import Callable
from typing import Protocol

from gateway.proxy.handler import Connection, ResponseHandler
from protocol.headers import RequestHeader


class InspectedProduce(ResponseHandler, Protocol):
    """One Produce request. Either the broker gets all of it as it comes, and `scan` sees it pass. Or (`whole`) it is
    collected, and `decide` returns the part that the broker gets."""

    @property
    def whole(self) -> bool: ...

    @property
    def ends(self) -> bool:
        """True if `decide` has taken something out of a request with acks=0. The connection then ends behind the request, as
        Kafka has it for an error of such a request."""
        ...

    def decide(self, frame: bytes, body_offset: int, now: float) -> bytes | None:
        """The bytes that the broker gets of the whole request; None if it gets nothing."""
        ...

    def scan(self, data: bytes, start: int, end: int, now: float) -> None:
        """`data[start:end]` passes, beginning with the request's body. Raises ProtocolError."""
        ...

    def answer(self, now: float) -> bytes:
        """The answer to a request of which the broker gets nothing."""
        ...


class ProduceInspector(Protocol):
    """Looks into the Produce requests of one connection."""

    @property
    def pending(self) -> bool:
        """True if it has to see the next requests even if topics are no longer looked at."""
        ...

    def open(self, header: RequestHeader, body_offset: int, frame_bytes: int, now: float) -> InspectedProduce:
        """Begin with a request of `frame_bytes` with its length, whose body begins at `body_offset` of its frame."""
        ...


class ProducedTopics:
    """Switches the look at topics on: `opener` makes an inspector for each connection, and is None while it is off.

    A caller that changes `opener` has the engine recall its buckets, so that sessions notice.
    """

    __slots__ = ("opener",)

    def __init__(self) -> None:
        self.opener: Callable[[Connection], ProduceInspector] | None = None
