"""The user and client-id of a connection, and the buckets that its requests are charged to."""

from typing import Final

from gateway.quotas.bucket import Bucket
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ANONYMOUS, BOOTSTRAP
from gateway.quotas.groups import NO_CLAIMS, Claims, passed_limit
from gateway.quotas.kinds.fetch import KIND as FETCH
from gateway.quotas.owned_places import owner_of
from gateway.quotas.queue_place import QueuePlace

LONGEST_STAY_SECONDS: Final = 60.0
"""The time without old records after which a consumer leaves its lane, however few new records it reads."""


def is_limited(path: tuple[Bucket, ...]) -> bool:
    """True if one of the buckets has a quota."""
    for bucket in path:  # noqa: SIM110 -- compiled, a loop costs less than any() over a generator
        if bucket.meter is not None:
            return True
    return False


def is_enforced(path: tuple[Bucket, ...]) -> bool:
    """True if one of the buckets has a quota that may delay its client."""
    for bucket in path:  # noqa: SIM110 -- as above
        if bucket.meter is not None and bucket.policy.enforce:
            return True
    return False


class Client:
    """A connection's user and its current client-id; their buckets are looked up once and kept until either changes.

    `hot_buckets` are those of Produce requests like the previous one. They are empty if the next Produce is to be parsed.
    Its first request of each kind may have to wait in its `place`. `ip` is the client's address, and `_claims` are those of its
    bearer token: groups may have rules for both. `broker` is the node id of the broker that serves the connection, or
    `BOOTSTRAP`.

    `lag_limits` are set once the client fetches, and empty unless its lag decides about its group. `behind` is the limit that
    it has passed (`passed_limit`). `_misplaced` are the bytes of old records that its usual group was charged for, less those
    of new records that its lane was charged for. `_lagged_at` is the time of the last response without a reason to leave the
    lane.
    """

    __slots__ = (
        "_buckets", "_claims", "_engine", "_exempt", "_lagged_at", "_limited", "_misplaced", "_renamed", "behind", "broker",
        "client_id", "generation", "hot_buckets", "ip", "lag_limits", "place", "user",
    )  # fmt: skip

    def __init__(self, engine: QuotaEngine) -> None:
        self._engine = engine
        self._buckets: dict[str, tuple[Bucket, ...]] = {}
        self._exempt: dict[str, bool] = {}
        self._limited: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.place: Final = QueuePlace()
        self._claims = NO_CLAIMS
        self._renamed = False  # the connection has used the buckets of another client-id before
        self._misplaced = 0
        self._lagged_at = 0.0
        self.behind = 0
        self.lag_limits: tuple[int, ...] = ()
        self.user = ANONYMOUS
        self.ip = ""
        self.broker = BOOTSTRAP
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
        if same_client:
            self._look_up_again(now)
        else:
            self._limited = {}
            self._renamed = self._renamed or len(self._buckets) > 0
            self._give_back(now)

    def find_room(self, now: float) -> bool:
        """Look all buckets up again if the client shares one because the engine was full, and has room now. False if not."""
        for path in self._buckets.values():
            for bucket in path:
                if bucket.resolution.tags.overflow and self._engine.has_room(
                    bucket, owner_of(self.user, self.ip), renamed=self._renamed
                ):
                    self._look_up_again(now)
                    return True
        return False

    def note_lag(self, lag: int, size: int, charged: int, now: float) -> None:
        """Follow the lag in records of a response to a Fetch: the client may leave its group for another one.

        `charged` is the `behind` with which its `size` bytes were charged. A client leaves its lane only after as many bytes of
        new records there as its usual group was charged for old ones. So reading both in turn is no way around the lane.
        """
        behind = passed_limit(lag, self.lag_limits, self.behind)
        if behind > charged:
            self._misplaced += size
        elif behind < charged:
            self._misplaced = max(0, self._misplaced - size)
        if behind >= self.behind:
            self._lagged_at = now
        elif self._misplaced > 0 and now - self._lagged_at < LONGEST_STAY_SECONDS:
            return
        else:
            self._misplaced = 0
        if behind != self.behind:
            self.behind = behind
            self._look_up_again(now)

    def _look_up_again(self, now: float) -> None:
        """Replace all buckets by the present ones of the same client."""
        self._limited = {}
        old, self._buckets = self._buckets, {}
        for kind, buckets in old.items():
            if buckets:
                self._buckets[kind] = self._path(kind, now, used=buckets[0].used_lately())
            self._release(buckets, now)
        self.hot_buckets = ()

    def identify(self, user: str, now: float, claims: Claims = NO_CLAIMS) -> None:
        """Set the user and the claims after an authentication; the buckets of another user are given back."""
        if user == self.user and claims == self._claims:
            return
        if user != self.user:
            self.behind = self._misplaced = 0
        self.user = user
        self._claims = claims
        self._exempt = {}
        self._limited = {}
        self._give_back(now)

    def buckets(self, kind: str, now: float) -> tuple[Bucket, ...]:
        """The buckets that this client's requests are charged to for a quota kind.

        The client's own is the first. Its group's follows, if the group has a limit of the kind. Then come the shadow limits of
        both, which delay nobody.
        """
        buckets = self._buckets.get(kind)
        if not buckets:
            buckets = self._buckets[kind] = self._path(kind, now)
        return buckets

    def bucket(self, kind: str, now: float) -> Bucket:
        """The client's own bucket for a quota kind."""
        return self.buckets(kind, now)[0]

    def limited_buckets(self, kind: str, now: float) -> tuple[Bucket, ...]:
        """As `buckets`, but empty if neither the client nor its group has a quota of the kind. No bucket is needed then."""
        buckets = self._buckets.get(kind)
        if buckets is None:
            buckets = self._buckets[kind] = self._path(kind, now, limited=True)
        return buckets if is_limited(buckets) else ()

    def limited_kinds(self, kinds: tuple[str, ...], now: float) -> tuple[str, ...]:
        """Those of the kinds that the client or its group has a quota of: usually none."""
        found = self._limited.get(kinds)
        if found is None:
            found = self._limited[kinds] = tuple([kind for kind in kinds if self.limited_buckets(kind, now)])
        return found

    def _path(self, kind: str, now: float, *, used: float = 0, limited: bool = False) -> tuple[Bucket, ...]:
        if kind == FETCH.name:
            self.lag_limits = self._engine.groups.lag_limits(self.user, self.client_id, self.ip, self._claims)
        return self._engine.acquire_path(
            kind, self.user, self.client_id, now, self.ip, self._claims,
            broker=self.broker, used=used, limited=limited, behind=self.behind, renamed=self._renamed,
        )  # fmt: skip

    def exempt_from(self, name: str) -> bool:
        """True if the client of the last request is exempt from topic quotas or volume quotas (`TOPICS`, `VOLUMES`)."""
        exempt = self._exempt.get(name)
        if exempt is None:
            exempt = self._exempt[name] = self._engine.table.exempts(name, self.user, self.client_id)
        return exempt

    def has_request_rate(self, now: float) -> bool:
        """True if the client of the last request, or its group, has a rate of requests, of any API."""
        for kind in self._engine.rate_kinds:  # noqa: SIM110 -- as above
            if self.limited_buckets(kind, now):
                return True
        return False

    @property
    def group(self) -> str:
        """The group of the client of the last request, "" without one."""
        return self._engine.groups.find(self.user, self.client_id, self.ip, self._claims, self.behind) or ""

    def leave(self, now: float) -> None:
        """Give all buckets back, as the connection is gone. Its turn in a queue is left for the client's next connection."""
        self.place.abandon(now)
        self._give_back(now)

    def _give_back(self, now: float) -> None:
        for buckets in self._buckets.values():
            self._release(buckets, now)
        self._buckets = {}
        self.place.begin_anew()
        self.hot_buckets = ()

    def _release(self, buckets: tuple[Bucket, ...], now: float) -> None:
        for bucket in buckets:
            self._engine.release(bucket, now)
