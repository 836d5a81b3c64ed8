"""Requests that wait for their answers, in the order in which those are due."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gateway.quotas.bucket import Bucket


class Special:
    """What else is to be known of a request that is not just passed on: one of the classes below, or `exchange.Opened`."""

    __slots__ = ()


class Entry:
    """A request on its way. `key` is its api key << 16 | version, `since` when it came (monotonic seconds).

    Entries are told apart by identity: correlation ids are the client's own affair. `bucket` is where the time that the broker
    takes is added to.
    """

    __slots__ = ("bucket", "correlation_id", "key", "since", "special")

    def __init__(
        self, correlation_id: int, key: int, since: float, special: Special | None = None, bucket: Bucket | None = None
    ) -> None:
        self.correlation_id = correlation_id
        self.key = key
        self.since = since
        self.special = special
        self.bucket = bucket

    @property
    def api_key(self) -> int:
        """Kafka's number of the API."""
        return self.key >> 16

    @property
    def version(self) -> int:
        """The version of the request, and of its answer."""
        return self.key & 0xFFFF


InFlight = deque[Entry]


@dataclass(slots=True)
class ChargedFetch(Special):
    """A Fetch whose answer is to be charged to a bucket. It may bring `asked` bytes under a quota, of which `promised` are set
    aside for it until then, or for a second at most (`Line.generation`)."""

    bucket: Bucket
    asked: int = 0
    promised: int = 0
    generation: int = 0

    def keep_promise(self) -> None:
        """The answer is there, or will never be."""
        if self.promised:
            self.bucket.line.release(self.promised, self.generation)
            self.promised = 0


@dataclass(frozen=True, slots=True)
class ThrottledFetch(Special):
    """A Fetch that found its bucket empty. `forwarded`: the broker was asked for nearly nothing, to keep its fetch session
    in step, and its answer is to be emptied; otherwise the answer is made here."""

    forwarded: bool


Take = Callable[[bytes, float], None]
"""Gets a whole answer of the broker, its four bytes of length included, and the time (monotonic seconds)."""


class Asked(Special):
    """A request of Weir's own on a client's connection, of which the client learns nothing."""

    __slots__ = ("_take",)

    def __init__(self, take: Take) -> None:
        self._take = take

    def finish(self, frame: bytes, now: float) -> bytes:
        """The answer is there; what the client gets of it is nothing."""
        self._take(frame, now)
        return b""
