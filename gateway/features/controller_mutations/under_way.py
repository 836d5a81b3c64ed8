"""Operations on their way to the controller, and the requests that wait for their outcome.

Nobody knows yet if the controller executes such an operation. So its partitions are reserved in its buckets, and not charged. A
request that finds a bucket in debt only because of reservations waits.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gateway.features.controller_mutations.turns import Place, Turns
from gateway.proxy.handler import WAIT, Connection, Verdict
from gateway.quotas.bucket import Bucket

LONGEST_SECONDS: Final = 30.0
"""The longest time for an answer: Kafka's default of request.timeout.ms. After that time, the client has given up as well."""


class Reservation:
    """The `partitions` of one request, in each of its buckets. `give_up` gets the time when `LONGEST_SECONDS` are over."""

    __slots__ = ("buckets", "give_up", "partitions", "since")

    def __init__(self, buckets: tuple[Bucket, ...], partitions: int, give_up: Callable[[float], object], since: float) -> None:
        self.buckets = buckets
        self.partitions = partitions
        self.give_up = give_up
        self.since = since


class UnderWay:
    """All connections share one object. `tick` is to be called once a second."""

    def __init__(self) -> None:
        self._reservations: dict[Reservation, None] = {}  # the oldest first
        self._waiting: dict[Bucket, OrderedDict[Connection, None]] = {}
        self._turns = Turns()
        self._places: dict[Connection, Place] = {}

    def place(self, connection: Connection) -> Place:
        """The place of the connection's requests, until the connection is gone."""
        place = self._places.get(connection)
        if place is None:
            place = self._places[connection] = Place(self._turns)
            connection.on_close += (lambda: self._places.pop(connection).close(),)
        return place

    def reserve(
        self, buckets: tuple[Bucket, ...], partitions: int, give_up: Callable[[float], object], now: float
    ) -> Reservation:
        """Reserve until `release`. `give_up` has to call `release` as well."""
        reservation = Reservation(buckets, partitions, give_up, now)
        self._reservations[reservation] = None
        for bucket in buckets:
            bucket.reserved += partitions
        return reservation

    def release(self, reservation: Reservation) -> None:
        """End a reservation, and ask the first request that waits for it once more."""
        del self._reservations[reservation]
        for bucket in reservation.buckets:
            bucket.reserved -= reservation.partitions
            self.wake(bucket)

    def queued(self, buckets: tuple[Bucket, ...]) -> Bucket | None:
        """A bucket that other requests wait for already; None if there is none."""
        return next((bucket for bucket in buckets if bucket in self._waiting), None)

    def wait(self, bucket: Bucket, connection: Connection, *, again: bool) -> None:
        """Take the last place among those that wait, or with `again` the first one, until `leave`. `wake` asks the handler."""
        waiting = self._waiting.setdefault(bucket, OrderedDict())
        waiting[connection] = None
        if again:
            waiting.move_to_end(connection, last=False)

    def leave(self, bucket: Bucket, connection: Connection) -> None:
        """The connection's request waits for this bucket no more: ask the next one."""
        waiting = self._waiting.get(bucket)
        if waiting is not None:
            waiting.pop(connection, None)
            if not waiting:
                del self._waiting[bucket]
        self.wake(bucket)

    def wake(self, bucket: Bucket) -> None:
        """Ask the first request that waits once more. Its handler then calls `wait` again, or `leave`."""
        waiting = self._waiting.get(bucket)
        while waiting:
            connection, _ = waiting.popitem(last=False)
            if not waiting:
                del self._waiting[bucket]
            if not connection.closed:
                connection.ready()
                return

    def tick(self, now: float) -> None:
        """Give up operations without an answer. Ask the first requests again, as the quotas may have changed."""
        self._turns.tick()
        for reservation in list(self._reservations):
            if now - reservation.since < LONGEST_SECONDS:
                break
            reservation.give_up(now)
        for bucket in list(self._waiting):
            self.wake(bucket)


class WaitingRequest:
    """A request of which the decision may depend on the outcome of others."""

    __slots__ = ("_awaited", "_connection", "_under_way")

    def __init__(self, connection: Connection, under_way: UnderWay) -> None:
        self._connection = connection
        self._under_way = under_way
        self._awaited: Bucket | None = None

    def decide(self, awaited: Bucket | None, queue: tuple[Bucket, ...], go_on: Callable[[], Verdict]) -> Verdict:
        """Wait for the reservations in `awaited`. Without one, call `go_on`, and then let the next request decide.

        A request that has not waited yet waits behind those that wait for a bucket of `queue`.
        """
        before, self._awaited = self._awaited, awaited
        if before is None and awaited is None:
            self._awaited = self._under_way.queued(queue)
        if self._awaited is not None:
            self._under_way.wait(self._awaited, self._connection, again=self._awaited is before)
            verdict: Verdict = WAIT
        else:
            verdict = go_on()
        if before is not None and before is not self._awaited:
            self._under_way.leave(before, self._connection)
        return verdict
