"""The user and client-id of a connection, and the buckets that its requests are charged to."""

from gateway.quotas.bucket import Bucket, QuotaVerdict
from gateway.quotas.engine import QuotaEngine

ANONYMOUS = "ANONYMOUS"
"""Kafka's name of the principal of a connection that has not authenticated."""


class Client:
    """A connection's user and its current client-id; their buckets are looked up once and kept until either changes.

    `hot_buckets` are those of Produce requests like the previous one. They are empty if the next Produce is to be parsed.
    """

    __slots__ = ("_buckets", "_engine", "_entered", "_exempt", "_queued", "client_id", "generation", "hot_buckets", "user")

    def __init__(self, engine: QuotaEngine) -> None:
        self._engine = engine
        self._buckets: dict[str, tuple[Bucket, ...]] = {}
        self._exempt: dict[str, bool] = {}
        self._entered: set[str] = set()  # kinds of quotas to which this connection has charged a request of the client's
        self._queued: tuple[Bucket, int] | None = None  # the bucket that this connection's first request waits for
        self.user = ANONYMOUS
        self.client_id = ""
        self.generation = engine.generation
        self.hot_buckets: tuple[Bucket, ...] = ()

    def use(self, client_id: str | None, now: float) -> None:
        """Set the client-id of the next request (null counts as empty, as in Kafka), and follow a change of the quotas."""
        name = client_id or ""
        if name == self.client_id and self.generation == self._engine.generation:
            return
        same_client = name == self.client_id
        self.client_id = name
        self.generation = self._engine.generation
        self._exempt = {}
        old, self._buckets = self._buckets, {}
        for kind, buckets in old.items():
            if same_client and buckets:
                used = buckets[0].used_lately()
                self._buckets[kind] = (self._engine.acquire(kind, self.user, name, now, used=used),)
            self._release(buckets, now)
        if not same_client:
            self._entered = set()
        self.hot_buckets = ()

    def identify(self, user: str, now: float) -> None:
        """Set the user after an authentication; the buckets of another user are given back."""
        if user == self.user:
            return
        self.user = user
        self._exempt = {}
        self._give_back(now)

    def buckets(self, kind: str, now: float) -> tuple[Bucket, ...]:
        """The buckets that this client's requests are charged to for a quota kind; the client's own is the first."""
        buckets = self._buckets.get(kind)
        if not buckets:
            buckets = self._buckets[kind] = (self._engine.acquire(kind, self.user, self.client_id, now),)
        return buckets

    def bucket(self, kind: str, now: float) -> Bucket:
        """The client's own bucket for a quota kind."""
        return self.buckets(kind, now)[0]

    def limited_buckets(self, kind: str, now: float) -> tuple[Bucket, ...]:
        """As `buckets`, but empty if the client has no quota of the kind. Such a client needs no bucket."""
        buckets = self._buckets.get(kind)
        if buckets is None:
            bucket = self._engine.acquire_limited(kind, self.user, self.client_id, now)
            buckets = self._buckets[kind] = () if bucket is None else (bucket,)
        return buckets if buckets and buckets[0].meter is not None else ()

    def exempt_from(self, name: str) -> bool:
        """True if the client of the last request is exempt from topic quotas or volume quotas (`TOPICS`, `VOLUMES`)."""
        exempt = self._exempt.get(name)
        if exempt is None:
            exempt = self._exempt[name] = self._engine.exempts(name, self.user, self.client_id)
        return exempt

    @property
    def queued(self) -> bool:
        """True while the connection's request waits for a bucket in debt."""
        return self._queued is not None

    def enter_queue(self, kind: str, size: int, now: float) -> QuotaVerdict:
        """The time that a request waits unforwarded because it is the first that this connection charges to a bucket in debt.

        `size` bytes of the request have arrived. The caller asks again when the time is over; the answer is then (0.0, False).
        A request that is charged to several kinds enters the queue of each kind in turn.
        """
        if self._queued is not None:
            self.leave_queue()
            return 0.0, False
        if kind in self._entered:
            return 0.0, False
        self._entered.add(kind)
        buckets = self.limited_buckets(kind, now)
        if not buckets:
            return 0.0, False
        bucket = buckets[0]
        amount = bucket.per_message + bucket.per_byte * size
        delay, enforced = bucket.enter_queue(amount, now)
        if enforced:
            self._queued = bucket, amount
        return delay, enforced

    def leave(self, now: float) -> None:
        """Give all buckets back, as the connection is gone."""
        self.leave_queue()
        self._give_back(now)

    def leave_queue(self) -> None:
        """Stop counting the connection's request as waiting."""
        if self._queued is not None:
            bucket, amount = self._queued
            bucket.leave_queue(amount)
            self._queued = None

    def _give_back(self, now: float) -> None:
        for buckets in self._buckets.values():
            self._release(buckets, now)
        self._buckets = {}
        self._entered = set()
        self.hot_buckets = ()

    def _release(self, buckets: tuple[Bucket, ...], now: float) -> None:
        for bucket in buckets:
            self._engine.release(bucket, now)
