"""Whose requests a connection carries, and which buckets they are charged to."""

from gateway.quotas.bucket import Bucket, QuotaVerdict
from gateway.quotas.engine import QuotaEngine

ANONYMOUS = "ANONYMOUS"
"""Kafka's name of the principal of a connection that has not authenticated."""


class Client:
    """A connection's user and its client-id of the moment; their buckets are looked up once and kept until either changes."""

    __slots__ = ("_buckets", "_engine", "_entered", "_exempt", "_queued", "client_id", "generation", "hot_bucket", "user")

    def __init__(self, engine: QuotaEngine) -> None:
        self._engine = engine
        self._buckets: dict[str, Bucket] = {}
        self._exempt: dict[str, bool] = {}
        self._entered: set[str] = set()  # kinds of quotas to which this connection has charged a request of the client's
        self._queued: tuple[Bucket, int] | None = None  # the bucket that this connection's first request waits for
        self.user = ANONYMOUS
        self.client_id = ""
        self.generation = engine.generation
        self.hot_bucket: Bucket | None = None  # that of Produce requests like the last one; None where it was given back

    def use(self, client_id: str | None, now: float) -> None:
        """The next request's client-id (null counts as empty, as in Kafka); also follows a change of the configuration."""
        name = client_id or ""
        if name == self.client_id and self.generation == self._engine.generation:
            return
        same_client = name == self.client_id
        self.client_id = name
        self.generation = self._engine.generation
        self._exempt = {}
        old, self._buckets = self._buckets, {}
        for kind, bucket in old.items():
            if same_client:
                used = bucket.used_lately()
                self._buckets[kind] = self._engine.acquire(kind, self.user, name, now, used=used)
            self._engine.release(bucket, now)
        if not same_client:
            self._entered = set()
        self.hot_bucket = None

    def identify(self, user: str, now: float) -> None:
        """The connection has authenticated, or has done so anew: from now on it is this user's."""
        if user == self.user:
            return
        self.user = user
        self._exempt = {}
        self._give_back(now)

    def bucket(self, kind: str, now: float) -> Bucket:
        """The bucket of this client for a quota kind."""
        bucket = self._buckets.get(kind)
        if bucket is None:
            bucket = self._buckets[kind] = self._engine.acquire(kind, self.user, self.client_id, now)
        return bucket

    def exempt_from(self, name: str) -> bool:
        """Return True if the client of the last request is exempt from topic quotas or volume quotas (`TOPICS`, `VOLUMES`)."""
        exempt = self._exempt.get(name)
        if exempt is None:
            exempt = self._exempt[name] = self._engine.exempts(name, self.user, self.client_id)
        return exempt

    def enter_queue(self, kind: str, amount: int, now: float) -> QuotaVerdict:
        """The time that a request waits unforwarded because it is the first that this connection charges to a bucket in debt.

        The caller asks again when the time is over; the answer is then (0.0, False). See `Bucket.enter_queue` for `amount`.
        """
        if self._queued is not None:
            self.leave_queue()
            return 0.0, False
        if kind in self._entered:
            return 0.0, False
        self._entered.add(kind)
        bucket = self.bucket(kind, now)
        delay, enforced = bucket.enter_queue(amount, now)
        if enforced:
            self._queued = bucket, amount
        return delay, enforced

    def follow(self, now: float) -> None:
        """Look the buckets up again if the configuration has changed."""
        self.use(self.client_id, now)

    def leave(self, now: float) -> None:
        """The connection is gone."""
        self.leave_queue()
        self._give_back(now)

    def leave_queue(self) -> None:
        """The connection's request waits no longer, if one did."""
        if self._queued is not None:
            bucket, amount = self._queued
            bucket.leave_queue(amount)
            self._queued = None

    def _give_back(self, now: float) -> None:
        for bucket in self._buckets.values():
            self._engine.release(bucket, now)
        self._buckets = {}
        self._entered = set()
        self.hot_bucket = None
