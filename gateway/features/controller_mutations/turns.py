"""The turns of requests that find a bucket of partitions in debt.

A permissive request waits unforwarded, and the client of a refused strict one comes again. Without turns, the first request
after a debt uses the balance up. Clients whose requests always come a moment later then get nothing.
"""

from collections import deque
from typing import Final

from gateway.quotas.bucket import Bucket
from gateway.quotas.first_requests import MAX_KEPT_TURNS
from gateway.quotas.line import Consumer

KEPT_TICKS: Final = 60
"""The place of a connection that is gone is kept for so many seconds. Clients reconnect within seconds."""

PLACE_SECONDS: Final = 1.0
"""The longest time of the quota that a place counts for. A client may claim any number of partitions that the broker then
refuses, and those behind would wait for them. The cost of a request delays those behind as a debt."""

MAX_KEPT: Final = 1_000
"""The most clients of which places are kept, `MAX_KEPT_TURNS` for each."""

Buckets = tuple[Bucket, ...]


class Place:
    """One connection's places in the lines of its buckets. `deferred`: its next request costs something, and waited before.

    A connection that has been served is not `_new`: its client has not come back after a timeout.
    """

    __slots__ = ("_buckets", "_closed", "_consumers", "_new", "_turns", "deferred")

    def __init__(self, turns: "Turns") -> None:
        self._turns = turns
        self._buckets: Buckets = ()
        self._consumers: list[Consumer] = []
        self._closed = False
        self._new = True
        self.deferred = False

    def wait(self, buckets: Buckets, now: float) -> float:
        """The seconds until a request may begin: until the debts and the requests before it are paid.

        A request that would wait gets a place that another connection has left, whose turn may have come already.
        """
        self._follow(buckets)
        seconds = max(self._waits_for(buckets, now))
        return max(self._waits_for(buckets, now)) if seconds > 0.0 and self._take_left(buckets) else seconds

    def take(self, buckets: Buckets, partitions: int, now: float) -> list[float]:
        """Take or keep a place in the line of each bucket, for a request of `partitions`. Returns the waits."""
        self._follow(buckets)
        if self._closed:  # an answer has come after the client has gone
            return self._waits_for(buckets, now)
        self._take_left(buckets)
        for bucket, each in zip(buckets, self._consumers, strict=True):
            if not each.waits and bucket.meter is not None:
                each.expected = min(partitions, max(int(PLACE_SECONDS * bucket.meter.limit), 1))
        return [bucket.take_turn(each, now) for bucket, each in zip(buckets, self._consumers, strict=True)]

    def _take_left(self, buckets: Buckets) -> bool:
        left = self._turns.take_left(buckets) if self._new and not self.waits and not self._closed else None
        self._consumers = left or self._consumers
        return left is not None

    def _waits_for(self, buckets: Buckets, now: float) -> list[float]:
        return [bucket.turn(each, now) for bucket, each in zip(buckets, self._consumers, strict=True)]

    def leave(self) -> None:
        """Leave the lines: the request costs nothing, or it has other buckets now."""
        for bucket, each in zip(self._buckets, self._consumers, strict=True):
            bucket.line.leave(each)

    def serve(self, partitions: int, now: float) -> None:
        """Leave the lines, as the request is forwarded for so many partitions."""
        self._new = False
        for bucket, each in zip(self._buckets, self._consumers, strict=True):
            if bucket.meter is not None:
                bucket.line.serve(each, bucket.meter, now, partitions)

    def close(self) -> None:
        """Leave the places for the client's next connection."""
        self._closed = True
        if self.waits:
            self._turns.keep(self._buckets, self._consumers)

    @property
    def waits(self) -> bool:
        return any(each.waits for each in self._consumers)

    def _follow(self, buckets: Buckets) -> None:
        if buckets != self._buckets:
            self.leave()
            self._buckets = buckets
            self._consumers = [Consumer() for _ in buckets]


class Turns:
    """The places that connections have left. All connections share one object. `tick` is to be called once a second.

    Clients give a request up after their request timeout. If the turns come later than that, a client that lost its place with
    its connection would never get an answer. So a later connection takes the place that another one has left.
    """

    def __init__(self) -> None:
        self._left: dict[Buckets, deque[tuple[int, list[Consumer]]]] = {}  # with the tick at which their connection ended
        self._ticks = 0

    def keep(self, buckets: Buckets, consumers: list[Consumer]) -> None:
        """Keep the places of a connection that is gone for a later one with the same buckets, if there is room."""
        left = self._left.get(buckets)
        if left is None:
            if len(self._left) >= MAX_KEPT:
                return
            left = self._left[buckets] = deque()
        if len(left) < MAX_KEPT_TURNS:
            left.append((self._ticks, consumers))

    def take_left(self, buckets: Buckets) -> list[Consumer] | None:
        """The places that were left first for these buckets; None if there are none."""
        left = self._left.get(buckets)
        if left is None:
            return None
        consumers = left.popleft()[1]
        if not left:
            del self._left[buckets]
        return consumers

    def tick(self) -> None:
        self._ticks += 1
        for buckets, left in list(self._left.items()):
            while left and self._ticks - left[0][0] > KEPT_TICKS:
                left.popleft()
            if not left:
                del self._left[buckets]
