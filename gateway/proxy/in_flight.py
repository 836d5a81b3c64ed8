"""Requests that wait for their answers, in the order in which the answers are due."""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from gateway.quotas.bucket import Bucket
from gateway.quotas.line import Consumer

MAX_IN_FLIGHT: Final = 1024
"""A client with so many unanswered requests is not read until half of them are answered. Brokers take one at a time."""

MAX_OWN_BYTES: Final = 256 * 1024
"""The most bytes of Weir's own answers that wait for the broker's answers before them. The client is not read meanwhile."""


class Special:
    """The treatment of an answer that is not just passed on: one of the classes below, or of `handler`."""

    __slots__ = ()


class Entry:
    """A request in flight. `key` is its api key << 16 | version. Weir took it at `since` (monotonic seconds). Before that, it
    waited in Weir for `waited` seconds.

    Entries are told apart by identity: clients may reuse correlation ids. `buckets` are those that the bytes of a Produce or of
    a Fetch answer are charged to: the client's own bucket first. The broker's latency is added to each.
    """

    __slots__ = ("buckets", "correlation_id", "key", "since", "special", "waited")

    def __init__(
        self, correlation_id: int, key: int, since: float, special: Special | None = None, buckets: tuple[Bucket, ...] = ()
    ) -> None:
        self.correlation_id = correlation_id
        self.key = key
        self.since = since
        self.special = special
        self.buckets = buckets
        self.waited = 0.0

    @property
    def api_key(self) -> int:
        return self.key >> 16

    @property
    def version(self) -> int:
        return self.key & 0xFFFF


InFlight = deque[Entry]


class DueAnswers(Protocol):
    """The answers that a connection's client has not got whole."""

    @property
    def newest(self) -> Entry | None:
        """The last request with such an answer; None if all are answered."""
        ...

    @property
    def unanswered(self) -> int:
        """The number of answers that have not begun."""
        ...


class ChargedFetch(Special):
    """A Fetch or ShareFetch whose answer is charged to the entry's buckets.

    Under a quota, a Fetch requests at most `requested` bytes. A part of them is set aside in each of the buckets until the
    answer has come, or for a second at most (`Line.generation`). With `muted`, the request has muted its client already, so its
    answer does not. The lines of the buckets have then noted `dropped` bytes (`Line.drop`). `behind` is the client's when it
    fetched. `size` are the bytes that its answer was charged. `in_session`: it continues a fetch session.
    """

    __slots__ = ("behind", "dropped", "in_session", "muted", "requested", "reserved", "size")

    def __init__(self, *, muted: bool = False, behind: int = 0, in_session: bool = False) -> None:
        self.muted = muted
        self.behind = behind
        self.in_session = in_session
        self.size = 0
        self.requested = 0
        self.dropped = 0
        self.reserved: tuple[tuple[Bucket, int, int], ...] = ()
        """A bucket, the bytes that are set aside in it, and the generation of its line."""

    def reserve(self, buckets: tuple[Bucket, ...], consumers: list[Consumer], requested: int, now: float) -> None:
        """Set bytes aside for an answer of at most `requested` bytes. `consumers` has one for each bucket."""
        reserved: list[tuple[Bucket, int, int]] = []
        for index, bucket in enumerate(buckets):
            amount = bucket.reserve_fetch(consumers[index], requested, now)
            reserved.append((bucket, amount, bucket.line.generation))
        self.reserved = tuple(reserved)

    def release(self) -> None:
        """Give the reserved bytes back, once the answer has arrived or the connection is gone."""
        for bucket, amount, generation in self.reserved:
            bucket.line.release(amount, generation)
        self.reserved = ()


TakeAnswer = Callable[[bytes, float], None]
"""Gets a whole answer of the broker, its four bytes of length included, and the time (monotonic seconds)."""


class OwnRequest(Special):
    """A request with an answer for Weir alone: one of its own, or a client's Produce with acks=0 that Weir wants results of.

    `outlives_client`: the broker's connection stays open for the answer after the client has gone.
    """

    __slots__ = ("_take", "outlives_client")

    def __init__(self, take: TakeAnswer, *, outlives_client: bool = False) -> None:
        self._take = take
        self.outlives_client = outlives_client

    def finish(self, frame: bytes, now: float) -> bytes:
        """Pass the answer to the callback; the client gets nothing."""
        self._take(frame, now)
        return b""
