"""One entity's use of one quota kind: what was measured, what is allowed, what was decided."""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf
from typing import Final

from gateway.quotas.account import Metered
from gateway.quotas.entity import OTHER, Resolution
from gateway.quotas.kinds import QuotaKind
from gateway.quotas.line import Consumer, Line
from gateway.quotas.meter import Meter
from gateway.quotas.policy import Policy
from gateway.quotas.snapshot import THROTTLE_BOUNDS, UsageRow

MOST_WITHIN_QUOTA: Final = 0.99
"""The largest fraction of a quota that a rate alone makes used: the token bucket is not empty yet, so nobody is throttled."""

LEAST_DELAY: Final = 0.0005
"""Seconds that round to 1 ms. Kafka throttles nobody for 0 ms."""

QuotaVerdict = tuple[float, bool]
"""The throttle time in seconds, and True if the gateway enforces that time. (0.0, False) is a request within its quota."""


class KindTotals:
    """The throttle decisions of one kind, all entities together."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(THROTTLE_BOUNDS) + 1)
        self.seconds = 0.0

    def note(self, delay: float) -> None:
        """Count one decision of `delay` seconds."""
        self.buckets[bisect_left(THROTTLE_BOUNDS, delay)] += 1
        self.seconds += delay


class Tally:
    """Counts of buckets: of one, or of several together."""

    __slots__ = ("amount", "early", "early_seconds", "early_seconds_max", "throttle_seconds", "throttled")

    def __init__(self) -> None:
        self.amount = self.throttled = self.early = 0
        self.throttle_seconds = self.early_seconds = self.early_seconds_max = 0.0

    def add(self, bucket: "Bucket") -> None:
        """Add what a bucket has counted since it was last shown otherwise than now."""
        before = bucket.shown_before
        self.amount += bucket.amount_total - before.amount
        self.throttled += bucket.throttled_total - before.throttled
        self.throttle_seconds += bucket.throttle_seconds_total - before.throttle_seconds
        self.early += bucket.early_total - before.early
        self.early_seconds += bucket.early_seconds_total - before.early_seconds
        self.early_seconds_max = max(self.early_seconds_max, bucket.early_seconds_max)


NOTHING: Final = Tally()


class Bucket(Metered):
    """Shared by all connections whose clients have the same tags.

    `amount_total` (bytes) is written by sessions on their hot path; `connections` is how many of them hold this bucket;
    `line` has its consumers, if it is one of Fetch.
    """

    __slots__ = (
        "_noticed",
        "amount_total",
        "answered_total",
        "connections",
        "early_seconds_max",
        "early_seconds_total",
        "early_total",
        "kind",
        "labelled",
        "last_used",
        "latency_seconds_total",
        "line",
        "marks",
        "others_marks",
        "others_total",
        "over_at",
        "policy",
        "resolution",
        "shown_before",
        "throttle_seconds_total",
        "throttled_total",
        "totals",
        "waiting",
    )

    def __init__(
        self, kind: QuotaKind, resolution: Resolution, meter: Meter | None, policy: Policy, totals: KindTotals, now: float
    ) -> None:
        super().__init__(meter)
        self.kind = kind
        self.resolution = resolution
        self.policy = policy
        self.totals = totals
        self.connections = 0
        self.amount_total = 0
        self.answered_total = 0  # Produce and Fetch requests that brokers have answered, and how long they took for it
        self.latency_seconds_total = 0.0
        self.waiting = 0  # bytes or mutations of requests that wait unforwarded, see `enter_queue`
        self.line = Line(now)
        self.throttled_total = 0
        self.throttle_seconds_total = 0.0
        self.early_total = 0
        self.early_seconds_total = 0.0
        self.early_seconds_max = 0.0
        self.last_used = now
        self.labelled = False  # whether metrics and tables show it by name
        self.shown_before = NOTHING  # what it had counted when that changed, so that no counter counts it twice
        self._noticed = 0  # the total at the last tick
        self.marks = [0] * len(policy.times)
        self.others_total = 0  # what other gateways have used of the same quota, as far as it was heard of
        self.others_marks: list[int] | None = None  # None until something is
        self.over_at = -inf  # when the quota was last exceeded

    def charge(self, amount: int, now: float) -> QuotaVerdict:
        """Measure `amount`. A debt that rounds to 0 ms throttles nobody; the meter keeps the debt.

        A bucket whose quotas are not enforced counts each delay as if the client had waited, and forgives the debt.
        """
        self.amount_total += amount
        if self.meter is None:
            return 0.0, False
        delay = self.meter.charge(amount, now)
        if delay < LEAST_DELAY:
            return 0.0, False
        return self._verdict(self.meter, delay, now)

    def record(self, amount: int, now: float) -> None:
        """Measure `amount` (negative: give it back) without holding anybody for it: whoever comes next will be."""
        self.amount_total += amount
        if self.meter is not None:
            self.meter.charge(amount, now)

    def enter_queue(self, amount: int, now: float) -> QuotaVerdict:
        """The time that a connection's first request waits unforwarded because this bucket is in debt.

        Without the wait, a client would pay a debt off by reconnecting. `amount` is the number of bytes that have arrived. They
        count as waiting until the caller calls `leave_queue`, so requests that wait together are forwarded one after the other.
        """
        meter, limit = self.meter, self.resolution.limit
        if meter is None or limit is None:
            return 0.0, False
        debt = meter.delay(now)
        if debt < LEAST_DELAY:
            return 0.0, False
        delay, enforced = self._verdict(meter, debt + self.waiting / limit, now)
        if enforced:
            self.waiting += amount
        return delay, enforced

    def leave_queue(self, amount: int) -> None:
        """A request that waited is forwarded, or its connection is gone."""
        self.waiting -= amount

    def enter(self, longest: float, now: float) -> QuotaVerdict:
        """Count one connection, unless the connection goes over the quota. The delay is at most `longest` seconds.

        Kafka records the connection, checks, and takes it back (`recordIpConnectionMaybeThrottle`), so that a rejected
        connection uses nothing of the quota.
        """
        meter = self.meter
        delay, enforced = 0.0, False
        if meter is not None:
            delay = meter.charge(1, now)
            delay, enforced = (0.0, False) if delay < LEAST_DELAY else self._verdict(meter, min(delay, longest), now)
            if enforced:
                meter.charge(-1, now)
                return delay, True
        self.amount_total += 1
        return delay, enforced

    def charge_fetch(self, consumer: Consumer, amount: int, now: float) -> QuotaVerdict:
        """As `charge`, for the response of a Fetch. While other consumers wait, this consumer waits until its next turn.

        Kafka's own algorithm has no turns: each of its decisions stays Kafka's.
        """
        meter = self.meter
        if meter is None or not self.policy.enforce or meter.takes_back:
            return self.charge(amount, now)
        self.amount_total += amount
        if consumer.expected > 0:
            self.line.answered(consumer.expected)
        if meter.charge(amount, now) < LEAST_DELAY and self.line.length == 0.0:
            return 0.0, False
        return self._queue(meter, consumer, now, served=True)

    def take_back(self, amount: int, now: float) -> bool:
        """Undo the charge, made at `now`, of a response that went over and is not to be sent; False: it is to be sent."""
        if self.meter is None or not self.meter.takes_back:
            return False
        self.meter.charge(-amount, now)
        self.amount_total -= amount
        return True

    def refuse(self, now: float) -> QuotaVerdict:
        """The time that a request waits if it may only begin within the quota."""
        if self.meter is None:
            return 0.0, False
        delay = self.meter.delay(now)
        if delay < LEAST_DELAY:
            return 0.0, False
        return self._verdict(self.meter, delay, now)

    def refuse_fetch(self, consumer: Consumer, now: float) -> QuotaVerdict:
        """As `refuse`, for a Fetch: its consumer waits for its turn as well, and keeps its place until that has come."""
        meter = self.meter
        if meter is None or not self.policy.enforce or meter.takes_back:
            return self.refuse(now)
        return self._queue(meter, consumer, now, served=False)

    def _queue(self, meter: Meter, consumer: Consumer, now: float, *, served: bool) -> QuotaVerdict:
        delay = self.line.wait(consumer, meter, now, served=served, alone=self.connections == 1)
        if delay < LEAST_DELAY:
            self.line.leave(consumer)
            return 0.0, False
        self.line.join(consumer, meter, now + delay)
        return self._verdict(meter, delay, now)

    @property
    def promised(self) -> int:
        """The bytes that are set aside for Fetches that brokers have not answered."""
        return self.line.promised

    def reserve(self, consumer: Consumer, asked: int, now: float) -> int:
        """Set bytes aside for a Fetch that asks for `asked`: all reservations together are within the balance, unless there is
        only one. Returns how many; `Line.release` takes them back."""
        line = self.line
        reserved = line.reserved(now)
        amount = consumer.reservation(asked, self.connections)
        tokens = self.meter.tokens(now) if self.meter is not None else None
        if reserved > 0 and tokens is not None:
            amount = max(min(amount, int(tokens) - reserved), 0)
        line.reserve(amount)
        return amount

    def full(self, asked: int, now: float) -> bool:
        """Whether the unanswered Fetches of one connection, which ask for `asked`, leave less than a portion of the balance.

        With Kafka's own algorithm they always do, because Kafka takes one request of a connection at a time.
        """
        if asked == 0 or self.meter is None or not self.policy.enforce:
            return False
        return self.meter.takes_back or self.meter.saved(now) - max(self.line.reserved(now), asked) < self.meter.portion

    def fetch_allowance(self, batch_bytes: int, now: float, *, first: bool = False, asked: int = 0) -> int | None:
        """How many bytes a Fetch that begins now may ask for, at least 1; None for as many as it likes.

        Brokers cut their answer anywhere and send the batch that was cut once more, which wastes the quota; so the
        allowance is a whole number of batches of `batch_bytes`, where that is known (not 0). The first batch comes
        whole however little is asked for (KIP-74). The `first` Fetch of a consumer among others may ask for a portion only:
        many may begin at once. `asked` is the number of bytes that its unanswered ones ask for.
        """
        if self.meter is None or not self.policy.enforce:
            return None
        meter = self.meter
        if first and self.connections > 1 and not meter.takes_back:
            allowance = int(meter.portion)
        else:
            allowance = int(meter.fetch_allowance(now, max(self.line.reserved(now), asked), self.connections))
        if batch_bytes > 0:
            allowance -= allowance % batch_bytes
        return max(allowance, 1)

    def note_early(self, seconds: float) -> None:
        """A client sent before its throttle time was over, by so many seconds at least."""
        self.early_total += 1
        self.early_seconds_total += seconds
        self.early_seconds_max = max(self.early_seconds_max, seconds)

    def still_held(self, left: float, limit: float | None, now: float) -> float:
        """What is left of a mute, made under `limit`, that had `left` seconds to go when the configuration changed.

        A token bucket knows, but not for how long its clients wait for each other. A window forgets a burst as soon as its
        samples are gone, long before the time that it asked for is over: so what is left is scaled as the limit was.
        """
        if self.meter is None or self.resolution.limit is None or not self.policy.enforce:
            return 0.0
        if limit == self.resolution.limit and self.line.length > 0.0:
            return left
        if self.meter.tokens(now) is not None:
            return min(left, self.meter.delay(now))
        return left if limit is None else left * min(1.0, limit / self.resolution.limit)

    def throttle_left(self, now: float) -> float:
        """For how many seconds a request that arrives now would be held."""
        if self.meter is None or not self.policy.enforce:
            return 0.0
        return self.meter.delay(now, 0.0, 0.0 if self.meter.idle(now) else self.line.length)

    def tick(self, now: float, *, marking: bool) -> None:
        """Once a second. With `marking`: remember the total, from which the rate is worked out."""
        if self.amount_total != self._noticed:
            self._noticed = self.amount_total
            self.last_used = now
        if marking:
            self.marks[self.policy.newest] = self.amount_total
            if self.others_marks is not None:
                self.others_marks[self.policy.newest] = self.others_total

    def rebind(self, policy: Policy, kept: Sequence[int]) -> None:
        """Follow another policy; its marks are those that stood at the places `kept`."""
        self.policy = policy
        self.marks = [self.marks[place] for place in kept]
        if self.others_marks is not None:
            self.others_marks = [self.others_marks[place] for place in kept]

    def used_lately(self) -> int:
        """The amount within the quota window, which ends now."""
        # What was given back may have been charged before that.
        return max(0, self.amount_total - self.marks[self.policy.oldest])

    def total(self) -> int:
        """What was measured here."""
        return self.amount_total

    def recent(self, now: float) -> int:  # noqa: ARG002
        """The amount within the quota window."""
        return self.used_lately()

    def charge_others(self, amount: int, now: float, *, no_debt: bool) -> None:
        """Charge the meter, and stay for as long as anybody elsewhere goes on."""
        self.last_used = now
        if self.others_marks is None:
            self.others_marks = [0] * len(self.marks)
        self.others_total += amount
        super().charge_others(amount, now, no_debt=no_debt)

    def rate(self, now: float) -> float:
        """What is used here per second, over the quota window: the meter's own rate, unless that forgets what goes over."""
        meter = self.meter
        # A shared meter's rate is that of all gateways; this one's own is told here, and whoever adds them up has all of it.
        if self.policy.enforce and meter is not None and self.shared_meter() is None:
            observed = meter.rate(now)
            if observed is not None:
                return observed
        return self._per_second(self.used_lately(), now)

    def rate_of_all(self, now: float) -> float:
        """The use per second over the quota window, by all gateways that share the quota."""
        observed = self.meter.rate(now) if self.policy.enforce and self.meter is not None else None
        return self._per_second(self.used_lately() + self._others_lately(), now) if observed is None else observed

    def used_ratio(self, now: float) -> float:
        """The fraction of the quota that is used, by all gateways that share it; 0.0 without a quota.

        Throttling begins at 1.0. An even flow leaves a token bucket full, so its rate counts too, but for less than 1.0 as
        long as the bucket holds anything. Where quotas are not enforced no debt is kept: a client that has gone over lately
        is shown at its rate.
        """
        meter, limit = self.meter, self.resolution.limit
        if meter is None or not limit:
            return 0.0
        used = meter.used_ratio(now)
        if self.policy.enforce and meter.rate(now) is not None:
            return used
        rate = self.rate_of_all(now) / limit
        went_over = now - self.over_at <= self.policy.span and not self.policy.enforce
        return max(used, rate if went_over else min(rate, MOST_WITHIN_QUOTA))

    def _others_lately(self) -> int:
        if self.others_marks is None:
            return 0
        return max(0, self.others_total - self.others_marks[self.policy.oldest])

    def _per_second(self, amount: int, now: float) -> float:
        policy = self.policy
        return amount / max(now - policy.times[policy.oldest], policy.span)

    @property
    def configured(self) -> bool:
        """Whether an entity has a quota, or is exempt, that is this bucket's alone."""
        entity = self.resolution.entity
        return entity is not None and entity.names_only

    def tally(self) -> Tally:
        """Everything that it has counted."""
        whole = Tally()
        whole.amount, whole.throttled, whole.early = self.amount_total, self.throttled_total, self.early_total
        whole.throttle_seconds, whole.early_seconds = self.throttle_seconds_total, self.early_seconds_total
        return whole

    def row(self, now: float) -> UsageRow:
        """This bucket as metrics and tables show it."""
        limit, before = self.resolution.limit, self.shown_before
        user, client_id = self.resolution.tags.shown
        return UsageRow(
            kind=self.kind.name,
            user=user,
            client_id=client_id,
            ip=self.resolution.tags.ip or "",
            level=str(self.resolution.entity or "") + (" (exempt)" if self.resolution.exempt else ""),
            source=self.resolution.source.value if self.resolution.source else "",
            limit=limit,
            rate=self.rate(now),
            used_ratio=self.used_ratio(now),
            tokens=self.meter.tokens(now) if self.meter is not None else None,
            amount_total=self.amount_total - before.amount,
            throttled_total=self.throttled_total - before.throttled,
            throttle_seconds_total=self.throttle_seconds_total - before.throttle_seconds,
            early_total=self.early_total - before.early,
            early_seconds_total=self.early_seconds_total - before.early_seconds,
            early_seconds_max=self.early_seconds_max,
            throttle_left=self.throttle_left(now),
            connections=self.connections,
        )

    def forgettable(self, now: float, idle_seconds: float) -> bool:
        """Whether a new bucket in its place would decide alike, and nobody will miss its figures."""
        return self.connections == 0 and now - self.last_used >= idle_seconds and (self.meter is None or self.meter.idle(now))

    def _verdict(self, meter: Meter, delay: float, now: float) -> QuotaVerdict:
        self.over_at = now
        self.throttled_total += 1
        self.throttle_seconds_total += delay
        self.totals.note(delay)
        if self.policy.enforce:
            return delay, True
        meter.forgive(now)
        return delay, False


class Rest:
    """The buckets that are not shown by name, as one: those that are too many, and those that are gone."""

    __slots__ = ("connections", "rate", "tally")

    def __init__(self) -> None:
        self.tally = Tally()
        self.rate = 0.0
        self.connections = 0

    def add(self, bucket: Bucket, now: float) -> None:
        """Count a bucket, but for what it was shown with by name."""
        self.tally.add(bucket)
        self.rate += bucket.rate(now)
        self.connections += bucket.connections

    def row(self, kind: QuotaKind, gone: Tally) -> UsageRow:
        """One row for all of them; `gone` is what was counted by those that are no longer among them."""
        tally = self.tally
        return UsageRow(
            kind=kind.name,
            user=OTHER,
            client_id=OTHER,
            ip="",
            level="",
            source="",
            limit=None,
            rate=self.rate,
            used_ratio=0.0,
            tokens=None,
            amount_total=gone.amount + tally.amount,
            throttled_total=gone.throttled + tally.throttled,
            throttle_seconds_total=gone.throttle_seconds + tally.throttle_seconds,
            early_total=gone.early + tally.early,
            early_seconds_total=gone.early_seconds + tally.early_seconds,
            early_seconds_max=max(gone.early_seconds_max, tally.early_seconds_max),
            throttle_left=0.0,
            connections=self.connections,
        )
