"""The consumers that wait for one bucket, in the order of their turns, and the bytes that are reserved for their responses.

Connections that create or delete topics wait in the same way (`gateway.features.controller_mutations.turns`), for partitions.

The line is measured in bytes: the place of a consumer is as long as its next response is expected to be. So the time until its
turn is the time in which the quota pays the bucket's debt and the bytes ahead of the consumer.
"""

from math import ceil
from typing import Final

from gateway.quotas.meter import FETCH_SLICE_SECONDS, Meter

LOOK_SECONDS: Final = 1.0
"""The shortest time between two looks at a request that waits for a debt (`Bucket.enter_queue`), except for the last one."""

LONGEST_TURN_SECONDS: Final = 15.0
"""The gateway divides a longer wait for other consumers into equal parts. A request waits no longer for others of its client
whose bytes have not come (`Bucket.enter_queue`). Some clients give up a connection after 30 s."""

GENERATION_SECONDS: Final = 0.5
"""A reservation whose Fetch gets no response ends after one to two generations."""

_GRACE_SECONDS: Final = 0.5
"""A consumer that comes later than that after its turn is no longer counted, since it may be gone."""

_LEAST_SPACE: Final = 0.02
"""Of a portion: one millisecond of the quota, so that no two consumers get the same time."""

_UNKNOWN: Final = -1


class Consumer:
    """One connection that fetches.

    `batch_bytes` is the size of the first batch in its last response with records, 0 before there is one. `expected` is the
    size of its last response, 0 if that had no records.
    """

    __slots__ = ("_in_debt", "_line", "_place", "_round", "_space", "batch_bytes", "expected")

    def __init__(self) -> None:
        self.batch_bytes = 0
        self.expected = _UNKNOWN
        self._line: Line | None = None
        self._place = 0.0
        self._round = 0
        self._space = 0.0
        self._in_debt = False  # it was served in debt, and its answer has not come

    @property
    def unknown(self) -> bool:
        """True before the first response."""
        return self.expected == _UNKNOWN

    @property
    def waits(self) -> bool:
        """True while it has a place in a line."""
        return self._line is not None

    def reservation(self, requested: int, consumers: int) -> int:
        """The bytes to reserve for a Fetch of `requested` bytes. An idle consumer reserves nothing, so it blocks none.

        A consumer that is alone may first ask for the whole balance. Half of the balance stays free for later consumers.
        """
        if self.unknown:
            return requested if consumers > 1 else requested // 2
        return min(self.expected, requested)


class Line:
    """The waiting consumers of one bucket. There is no list of them, so that a Fetch costs the same in a line of any length.

    A place is the number of bytes of all consumers that joined before. `_head` is the number of bytes of all consumers that
    were served or did not come in time. Turns and reservations expire by halves: the older half is dropped as a whole. `_round`
    counts the halves of the turns, `generation` the halves of the reservations.
    """

    __slots__ = (
        "_aging", "_dropped", "_dropped_at", "_due", "_fresh", "_head", "_late", "_late_due", "_overtaken_at", "_round",
        "_since", "_tail", "_usual", "generation",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self._head = 0.0
        self._tail = 0.0
        self._round = 0
        self._due = now  # the last turn that was given out in this round
        self._late = 0.0  # bytes of consumers of the previous round that have not come
        self._late_due = now
        self._usual = 0  # bytes of the last response with records
        self._fresh = 0  # reserved in this generation
        self._aging = 0  # reserved in the previous generation
        self._since = now
        self.generation = 0
        self._overtaken_at = now  # from then on, a consumer that was overtaken may be served in debt
        self._dropped = 0.0  # bytes, less those that the quota has paid since; as of the time `_dropped_at`
        self._dropped_at = now

    @property
    def length(self) -> float:
        """The bytes that all waiting consumers are expected to take."""
        return self._tail - self._head

    def wait(self, consumer: Consumer, meter: Meter, now: float, *, served: bool, alone: bool) -> float:
        """The seconds until the consumer's turn. A consumer without a place would take the last one.

        If the consumer is `alone`, all reservations are its own. A consumer that was just `served` waits for all others even if
        the balance is large. Otherwise it would use up the burst while the others wait. A larger balance moves the line faster.
        """
        if now > self._late_due + _GRACE_SECONDS:
            self._give_up_late(now)
        ahead = self._ahead_of(consumer)
        if self._is_overtaken(ahead, meter, now):
            return 0.0
        reserved = 0 if alone else self.reserved(now)
        if ahead <= 0.0 or (reserved == 0 and meter.idle(now)):  # a full bucket has enough for all consumers
            ahead = 0.0
        delay = meter.delay(now, 0.0, ahead)
        if reserved > 0:
            # Perhaps the pending responses have no records, and their reservations end soon.
            more = meter.delay(now, reserved + min(self._needs(consumer, meter), meter.portion), ahead) - delay
            over = more - GENERATION_SECONDS
            delay += more if over <= 0.0 else GENERATION_SECONDS * (1.0 + over / (1.0 + over))
        if ahead > 0.0:
            if served:
                delay = max(delay, meter.delay(now) + ahead / (meter.portion / FETCH_SLICE_SECONDS + meter.saved(now)))
            if delay > LONGEST_TURN_SECONDS:
                delay = max(delay / ceil(delay / LONGEST_TURN_SECONDS), meter.delay(now))
        return delay

    def _ahead_of(self, consumer: Consumer) -> float:
        """The bytes before the consumer's place, or before the last place. Below 0: consumers behind it were served first."""
        if consumer._line is not self:
            return self.length
        given_up = consumer._round < self._round - 1
        return consumer._place - self._head + (consumer._space if given_up else 0.0)

    def _is_overtaken(self, ahead: float, meter: Meter, now: float) -> bool:
        """True if a consumer missed its turn, and may be served in spite of a debt.

        The turn of a small answer lasts for a few milliseconds, and requests come later than that by their way through the
        network. Those behind would always be served first.
        """
        return ahead < -meter.portion * _LEAST_SPACE / 2.0 and now >= self._overtaken_at

    def serve(self, consumer: Consumer, meter: Meter, now: float, amount: int = 0) -> None:
        """Remove the consumer from the line, as its request begins. That costs `amount` if it is more than the place counts."""
        if consumer._line is self and meter.delay(now) > 0.0:
            # Those that were overtaken get the quota's rate together, so their debt does not grow.
            self._overtaken_at = now + max(max(consumer._space, float(amount)) / self._rate(meter), FETCH_SLICE_SECONDS)
            consumer._in_debt = True
        self.leave(consumer)

    def join(self, consumer: Consumer, meter: Meter, due: float) -> None:
        """Take the last place until `due`. A consumer that has a place keeps it, also a late one."""
        if consumer._line is not self:
            consumer._line = self
            consumer._place = self._tail
            consumer._space = self._needs(consumer, meter)
            self._tail += consumer._space
        elif consumer._round == self._round - 1:
            self._late -= consumer._space
        elif consumer._round < self._round:
            self._head -= consumer._space
        consumer._round = self._round
        self._due = max(self._due, due)

    def leave(self, consumer: Consumer) -> None:
        """Remove the consumer from the line."""
        if consumer._line is self:
            consumer._line = None
            if consumer._round >= self._round - 1:
                self._head += consumer._space
                if consumer._round < self._round:
                    self._late -= consumer._space

    def answered(self, consumer: Consumer, meter: Meter, now: float) -> None:
        """Take the size of a response with records, `expected`: the next new consumer is expected to get as many bytes."""
        self._usual = consumer.expected
        if consumer._in_debt:
            consumer._in_debt = False
            more = max(consumer.expected - consumer._space, 0.0)
            self._overtaken_at = max(self._overtaken_at, now) + more / self._rate(meter)

    def reserve(self, amount: int) -> None:
        """Reserve bytes in the current `generation`. Call `reserved` first."""
        self._fresh += amount

    def release(self, amount: int, generation: int) -> None:
        """End a reservation that was made in `generation`, unless it has expired."""
        if generation == self.generation:
            self._fresh -= amount
        elif generation == self.generation - 1:
            self._aging -= amount

    def reserved(self, now: float) -> int:
        """The reserved bytes. Begins a new generation if the current one is over."""
        age = now - self._since
        if age >= GENERATION_SECONDS:
            recent = age < 2 * GENERATION_SECONDS
            self._aging = self._fresh if recent else 0
            self._fresh = 0
            self._since = self._since + GENERATION_SECONDS if recent else now
            self.generation += 1 if recent else 2
        return self.promised

    @property
    def promised(self) -> int:
        """The reserved bytes as of the last call of `reserved`, and later ones."""
        return self._fresh + self._aging

    def drop(self, amount: int, meter: Meter, now: float) -> None:
        """Note bytes that a broker sends for a client in debt, and that no client gets (negative: fewer than noted before).

        A second budget pays them, at the quota's own rate: the meter does not count them.
        """
        self._dropped = max(self._unpaid(meter, now) + amount, 0.0)
        self._dropped_at = now

    def may_drop(self, meter: Meter, now: float) -> bool:
        """True while the second budget has a part of its burst left. Its burst is that of the quota."""
        return self._unpaid(meter, now) < meter.capacity

    def _unpaid(self, meter: Meter, now: float) -> float:
        return max(self._dropped - (now - self._dropped_at) * self._rate(meter), 0.0)

    def _rate(self, meter: Meter) -> float:
        """The rate of this gateway. Its share of a quota may be smaller than the quota."""
        return meter.portion / FETCH_SLICE_SECONDS

    def _give_up_late(self, now: float) -> None:
        """Begin a new round. The consumers of the previous round that have not come are no longer counted."""
        all_late = now > self._due + _GRACE_SECONDS
        self._head = self._tail if all_late else self._head + self._late
        self._late = self.length
        self._late_due = self._due
        self._round += 2 if all_late else 1

    def _needs(self, consumer: Consumer, meter: Meter) -> float:
        if consumer.unknown:
            return max(float(self._usual), meter.portion)
        return max(float(consumer.expected), meter.portion * _LEAST_SPACE)
