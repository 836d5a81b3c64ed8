"""A connection's place in the queues of buckets in debt (`FirstRequests`)."""

from math import inf

from gateway.quotas.bucket import Bucket, QuotaVerdict


class QueuePlace:
    """Holds the first request of a kind that a connection charges to its buckets until none of them is in debt.

    A request that is charged to several kinds, or to a group as well, enters the queue of each bucket in turn. If it still
    arrives at its turn, it keeps its place in the last queue until `leave_queue`.
    """

    __slots__ = ("_entered", "_kind", "_let_in", "_next", "_place", "_turn", "arrives_by")

    def __init__(self) -> None:
        self._entered: set[str] = set()  # kinds whose buckets need no wait any more
        self._kind = ""  # the kind whose buckets the request waits for
        self._next = 0  # the bucket of that kind whose queue it is in, or enters next
        self._turn = inf  # the latest end of its wait in that queue
        self._let_in = inf  # an earlier end of that wait, for a member of a consumer group
        self._place: tuple[Bucket, int, float] | None = None  # its present bucket, and its cost and its turn there
        self.arrives_by = 0.0  # until then, others wait for the request, which arrives after its turn; 0 while it waits

    @property
    def queued(self) -> bool:
        """True while the request waits for a bucket in debt."""
        return self._place is not None and self.arrives_by == 0.0

    def enters(self, kind: str) -> bool:
        """Step out of the queue, as the time of the last `enter` is over. True if the request has to `enter` for this kind."""
        if self.queued:
            self._leave_bucket()
        return kind not in self._entered

    def enter(
        self, kind: str, buckets: tuple[Bucket, ...], size: int, now: float, *, arrives: bool, units: int
    ) -> tuple[Bucket, QuotaVerdict] | None:
        """A bucket in debt, and the time that the request waits unforwarded for it. The caller asks again when it is over.

        None: the request may pass. It has `size` bytes, arrived or not, and `units` are its cost beside them. It still
        `arrives` if some of its bytes have not.
        """
        if kind != self._kind:
            self._kind = kind
            self._next = 0
            self._turn = self._let_in = inf
        waited = self._turn < inf
        while self._next < len(buckets):
            bucket = buckets[self._next]
            amount = units + bucket.per_message + bucket.per_byte * size
            delay, enforced, turn = bucket.enter_queue(amount, min(self._turn, self._let_in), now)
            if enforced:
                self._leave_bucket()
                self._turn = self._turn if waited else turn
                self._place = bucket, amount, self._turn
                return bucket, (delay, True)
            if waited and arrives:
                self._leave_bucket()
                self._place = bucket, amount, self._turn
                self.arrives_by = bucket.first_requests.begin_arrival(amount, now)
            self._next += 1
            self._turn = self._let_in = inf
            waited = False
            if delay > 0.0:
                return bucket, (delay, False)
        self._kind = ""
        self._entered.add(kind)
        return None

    def let_in_at(self, when: float) -> None:
        """The request leaves the queue of its bucket at that time, if not earlier."""
        self._let_in = min(self._let_in, when)

    def leave_queue_of(self, kinds: tuple[str, ...]) -> None:
        """As `leave_queue`, if the request waits for one of these kinds."""
        if self._kind in kinds:
            self.leave_queue()

    def leave_queue(self) -> None:
        """Stop counting the request as waiting. The next request of its kind waits for every bucket."""
        self._leave_bucket()
        self._kind = ""

    def abandon(self, now: float) -> None:
        """Leave the turn for the client's next connection, as this one is gone."""
        if self._place is not None:
            bucket, _, turn = self._place
            bucket.first_requests.keep(min(turn, self._let_in), now, member=self._let_in < turn)
        self.leave_queue()

    def begin_anew(self) -> None:
        """The next request is the first one, as the client gets other buckets."""
        self._entered = set()
        self._kind = ""

    def _leave_bucket(self) -> None:
        if self._place is not None:
            bucket, amount, _ = self._place
            bucket.first_requests.leave(amount, self.arrives_by)
            self._place, self.arrives_by = None, 0.0
