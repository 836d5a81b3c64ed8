"""One entity's use of one quota kind: its meter, its counters, and the throttle decisions on its requests."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from gateway.quotas.entity import Resolution
from gateway.quotas.first_requests import FirstRequests
from gateway.quotas.group_meter import GroupMeter
from gateway.quotas.kinds import QuotaKind
from gateway.quotas.line import LOOK_SECONDS, Consumer, Line
from gateway.quotas.meter import Meter
from gateway.quotas.policy import KindTotals, Policy
from gateway.quotas.shared_meter import SharedMeter, as_shared
from gateway.quotas.snapshot import Tally, ThrottleEpisode

MOST_WITHIN_QUOTA: Final = 0.99
"""The largest used fraction that follows from a rate alone: the token bucket is not empty yet, so no client is throttled."""

LEAST_DELAY: Final = 0.0005
"""Seconds that round to 1 ms. Kafka throttles nobody for 0 ms."""

QuotaVerdict = tuple[float, bool]
"""The throttle time in seconds, and True if the gateway enforces that time. (0.0, False) is a request within its quota."""

_NOTHING: Final = Tally()


class Bucket:
    """Shared by all connections whose clients have the same tags. It is a `UsageAccount` for gateways that share quotas.

    Sessions write `amount_total` on their hot path. `connections` is the number of connections that hold the bucket. `line` has
    the consumers of a Fetch bucket. `owner` has its place (`OwnedPlaces`).
    """

    __slots__ = (
        "_active", "_counted", "_noticed", "active_seconds", "amount_total", "answered_total", "connections",
        "early_seconds_max", "early_seconds_total", "early_total", "episode", "first_requests", "kind", "labelled", "last_used",
        "latency_seconds_total", "line", "marks", "member_lines", "meter", "others_marks", "others_total", "over_at",
        "owner", "per_byte", "per_message", "policy", "reserved", "resolution", "shared_total", "shown_before", "successor",
        "throttle_seconds_total", "throttled_total", "totals", "unenforced_total",
    )  # fmt: skip

    def __init__(
        self, kind: QuotaKind, resolution: Resolution, meter: Meter | None, policy: Policy, totals: KindTotals, now: float
    ) -> None:
        self.meter = meter
        self.kind = kind
        charge = kind.charge
        # The kind's figures, see `Charge`: the hot path computes costs without a call.
        self.per_message = 0 if charge is None else charge.per_message
        self.per_byte = 0 if charge is None else charge.per_byte
        self.resolution = resolution
        self.policy = policy
        self.totals = totals
        self.connections = 0
        self.amount_total = 0
        self.shared_total = 0  # see UsageAccount
        self.answered_total = 0  # Produce and Fetch requests that brokers have answered
        self.latency_seconds_total = 0.0  # of these answers
        self.owner = ""
        self.first_requests = FirstRequests()
        self.reserved = 0  # partitions of operations without an outcome; they are not charged
        self.member_lines: dict[str, float] = {}  # when the next member of each line may pass in spite of a debt (`let_in`)
        self.line = Line(now)
        self.throttled_total = 0
        self.unenforced_total = 0
        self.throttle_seconds_total = 0.0
        self.early_total = 0
        self.early_seconds_total = 0.0
        self.early_seconds_max = 0.0
        self.last_used = now
        self.labelled = False  # metrics and tables show it by name
        self.shown_before = _NOTHING  # its counters when `labelled` changed, so that nothing is counted under both names
        self._counted = 0  # the highest total that was shown
        self._noticed = 0  # the total at the last tick
        self._active = False  # at the last tick
        self.active_seconds = 0  # with use, or with a throttle that follows the use
        self.marks = [0] * len(policy.times)
        self.others_total = 0  # the use of the same quota that peers have reported
        self.others_marks: list[int] | None = None  # None before the first report
        self.over_at = -inf  # when the quota was last exceeded
        self.episode = ThrottleEpisode()
        self.successor: Callable[[Bucket, float], Bucket] | None = None  # set once the bucket is forgotten

    def charge(self, amount: int, now: float) -> QuotaVerdict:
        """Measure `amount`. A debt that rounds to 0 ms throttles nobody; the meter keeps the debt.

        A bucket whose quotas are not enforced counts each delay as if the client had waited, and forgives the debt. Of a debt
        by several gateways, each counts its part.
        """
        meter = self.meter
        if meter is None:
            return self._charge_unmetered(amount, now)
        self.amount_total += amount
        delay = meter.charge(amount, now)
        if delay < LEAST_DELAY:
            return 0.0, False
        return self._verdict(meter, delay, now)

    def _charge_unmetered(self, amount: int, now: float) -> QuotaVerdict:
        if self.successor is not None:
            return self.successor(self, now).charge(amount, now)
        self.amount_total += amount
        return 0.0, False

    def record(self, amount: int, now: float) -> None:
        """Measure `amount` (negative: undo the last charge) without throttling this request. A debt throttles the next one."""
        meter = self.meter
        if meter is None and self.successor is not None:
            self.successor(self, now).record(amount, now)
            return
        self.amount_total += amount
        if meter is not None:
            if amount < 0:
                meter.take_back(-amount, now)
            else:
                meter.charge(amount, now)

    def enter_queue(self, amount: int, turn: float, now: float) -> tuple[float, bool, float]:
        """The verdict on a connection's first request, which waits unforwarded while this bucket is in debt; and its turn.

        Without the wait, a client would pay a debt off by reconnecting. `amount`, of the whole request, counts as waiting until
        `FirstRequests.leave`, so requests pass one after the other. The caller asks again with the answer as `turn`.
        """
        meter = self.meter
        debt = 0.0 if meter is None else meter.delay(now)
        if meter is None or (debt < LEAST_DELAY and not self.first_requests.arriving(now)):
            return 0.0, False, turn
        if turn == inf:
            turn = self.first_requests.turn(debt, meter.limit, now)
        # The next look is at the end of the debt: the requests before may be gone, or smaller than they claim.
        delay, enforced = self._verdict(meter, min(turn - now, max(debt, LOOK_SECONDS)), now)
        if enforced:
            self.first_requests.waiting += amount
        return delay, enforced, turn

    def charge_connection(self, longest: float, now: float, patience: float = 0.0) -> QuotaVerdict:
        """Count one connection. If the enforced delay is above `patience`, the connection is refused and uses nothing.

        Kafka records the connection, checks, and takes it back (`recordIpConnectionMaybeThrottle`). The delay is at most
        `longest` seconds.
        """
        meter = self.meter
        self.amount_total += 1
        if meter is None:
            return 0.0, False
        delay, enforced = self._verdict(meter, min(meter.admit(1, patience, now), longest), now)
        if enforced and delay > patience:
            self.amount_total -= 1
            meter.take_back(1, now)
        return delay, enforced

    def charge_fetch(self, consumer: Consumer, amount: int, now: float) -> QuotaVerdict:
        """As `charge`, for the response of a Fetch. While other consumers wait, this consumer waits until its next turn.

        Kafka's own algorithm has no turns: each of its decisions stays Kafka's.
        """
        meter = self.meter
        if meter is None or not self.policy.enforce:
            return self.charge(amount, now)
        self.amount_total += amount
        if meter.takes_back:
            return self._verdict(meter, meter.admit(amount, 0.0, now), now)
        if consumer.expected > 0:
            self.line.answered(consumer, meter, now)
        if meter.charge(amount, now) < LEAST_DELAY and self.line.length == 0.0:
            return 0.0, False
        return self._queue(meter, consumer, now, served=True)

    @property
    def takes_back(self) -> bool:
        """True if a response over the quota is not sent. The caller then undoes its charge."""
        return self.meter is not None and self.meter.takes_back

    def admit(self, now: float, turn: float = 0.0) -> QuotaVerdict:
        """The verdict on a request that may only begin within the quota, `turn` seconds from now at the earliest.

        Nothing is charged.
        """
        return (0.0, False) if self.meter is None else self._verdict(self.meter, max(self.meter.delay(now), turn), now)

    def admit_fetch(self, consumer: Consumer, now: float) -> QuotaVerdict:
        """As `admit`, for a Fetch: its consumer waits for its turn as well, and keeps its place until then."""
        meter = self.meter
        if meter is None or not self.policy.enforce or meter.takes_back:
            return self.admit(now)
        return self._queue(meter, consumer, now, served=False)

    def _queue(self, meter: Meter, consumer: Consumer, now: float, *, served: bool) -> QuotaVerdict:
        delay = self.line.wait(consumer, meter, now, served=served, alone=self.connections == 1)
        if delay < LEAST_DELAY:
            self.line.serve(consumer, meter, now)
            return 0.0, False
        self.line.join(consumer, meter, now + delay)
        return self._verdict(meter, delay, now)

    def turn(self, place: Consumer, now: float) -> float:
        """The seconds until a request may begin: until the debt and the requests before it in the line are paid."""
        if self.meter is None or not self.policy.enforce:
            return 0.0
        return self.line.wait(place, self.meter, now, served=False, alone=True)

    def take_turn(self, place: Consumer, now: float) -> float:
        """As `turn`. The request takes the last place in the line, or keeps its own."""
        delay = self.turn(place, now)
        if self.meter is not None and delay > 0.0:
            self.line.join(place, self.meter, now + delay)
        return delay

    def reserve_fetch(self, consumer: Consumer, requested: int, now: float) -> int:
        """Reserve bytes in the line for a Fetch of at most `requested`. Returns their number, for `Line.release`.

        All reservations together are within the balance, unless there is only one.
        """
        line = self.line
        reserved = line.reserved(now)
        amount = consumer.reservation(requested, self.connections)
        tokens = self.meter.tokens(now) if self.meter is not None else None
        if reserved > 0 and tokens is not None:
            amount = max(min(amount, int(tokens) - reserved), 0)
        line.reserve(amount)
        return amount

    def exhausted_by(self, requested: int, now: float) -> bool:
        """True if one connection's unanswered Fetches, of `requested` bytes, leave less than a portion of the balance.

        With Kafka's algorithm this is always so, because Kafka takes one request of a connection at a time.
        """
        if requested == 0 or self.meter is None or not self.policy.enforce:
            return False
        return self.meter.takes_back or self.meter.saved(now) - max(self.line.reserved(now), requested) < self.meter.portion

    def fetch_allowance(self, batch_bytes: int, now: float, *, first: bool = False, requested: int = 0) -> int | None:
        """The maximum number of bytes, at least 1, to request in a Fetch that starts now. None: no maximum.

        A broker cuts its answer anywhere and sends the cut batch again later, which wastes the quota. So the allowance is a
        multiple of `batch_bytes`, unless that is 0 (unknown). A broker sends the first batch whole in any case (KIP-74).
        The connection's unanswered Fetches request `requested` bytes. With several consumers, the `first` Fetch of each may
        request a portion only, because many may begin at once.
        """
        if self.meter is None or not self.policy.enforce:
            return None
        meter = self.meter
        if first and self.connections > 1 and not meter.takes_back:
            allowance = int(meter.portion)
        else:
            allowance = int(meter.fetch_allowance(now, max(self.line.reserved(now), requested), self.connections))
        if batch_bytes > 0:
            allowance -= allowance % batch_bytes
        return max(allowance, 1)

    def note_early(self, seconds: float) -> None:
        """Count a request that came at least so many seconds before the throttle time was over."""
        self.early_total += 1
        self.early_seconds_total += seconds
        self.early_seconds_max = max(self.early_seconds_max, seconds)

    def throttle_left(self, now: float) -> float:
        """The throttle time in seconds of a request that arrives now."""
        if self.meter is None or not self.policy.enforce:
            return 0.0
        return self.meter.delay(now, 0.0, 0.0 if self.meter.idle(now) else self.line.length)

    def tick(self, now: float, *, marking: bool) -> None:
        """To be called once a second; with `marking` it marks the total, for the rate."""
        if self.amount_total != self._noticed:
            self._noticed = self.amount_total
            self.last_used = now
            self._active = True
        elif self._active and not self.throttle_left(now):
            self._active = False
        if self._active:
            self.active_seconds += 1
        if marking:
            self.marks[self.policy.newest] = self.amount_total
            if self.others_marks is not None:
                self.others_marks[self.policy.newest] = self.others_total

    def rebind(self, policy: Policy, kept: Sequence[int]) -> None:
        """Follow another policy. `kept` are the positions of the marks that stay."""
        self.policy = policy
        self.marks = [self.marks[position] for position in kept]
        if self.others_marks is not None:
            self.others_marks = [self.others_marks[position] for position in kept]

    def used_lately(self) -> int:
        """The amount within the quota window, which ends now."""
        # An amount that was given back may have been charged before the window.
        return max(0, self.amount_total - self.marks[self.policy.oldest])

    def total(self) -> int:
        return self.amount_total

    def recent(self, now: float) -> int:  # noqa: ARG002
        return self.used_lately()

    def capacity(self) -> float:
        return 0.0 if self.meter is None else self.meter.capacity

    def shared_meter(self) -> SharedMeter | None:
        return as_shared(self.meter)

    def charge_others(self, amount: int, now: float, *, no_debt: bool) -> None:
        """The bucket stays as long as peers use the quota."""
        self.last_used = now
        if self.others_marks is None:
            self.others_marks = [0] * len(self.marks)
        self.others_total += amount
        meter = as_shared(self.meter)
        if meter is not None:
            meter.charge_others(amount, now, no_debt=no_debt)
            if isinstance(self.meter, GroupMeter):
                self.meter.follow_peers(now)
            if not self.policy.enforce and self.used_lately() == 0:
                meter.forgive(now)  # the peers count the whole debt: this gateway has no part in it

    def rate(self, now: float) -> float:
        """The use per second through this gateway, over the quota window: the meter's rate if it has one."""
        meter = self.meter
        # A shared meter has the rate of all gateways. Readers add up the gateways' rates, so each reports only its own.
        if self.policy.enforce and meter is not None and as_shared(meter) is None:
            observed = meter.rate(now)
            if observed is not None:
                return observed
        return self.policy.per_second(self.used_lately(), now)

    def rate_of_all(self, now: float) -> float:
        """The use per second over the quota window, by all gateways that share the quota."""
        observed = self.meter.rate(now) if self.policy.enforce and self.meter is not None else None
        if observed is not None:
            return observed
        return self.policy.per_second(self.used_lately() + self._used_by_others(), now)

    def _used_by_others(self) -> int:
        return 0 if self.others_marks is None else max(0, self.others_total - self.others_marks[self.policy.oldest])

    def used_ratio(self, now: float) -> float:
        """The fraction of the quota, or of a group's present share, that all gateways have used; 0.0 without a quota.

        Throttling begins at 1.0. An even flow leaves a token bucket full, so its rate counts too, but below 1.0 while the
        bucket holds tokens. Without enforcement, the ratio of a client that was over the quota lately is its rate.
        """
        meter = self.meter
        if meter is None:
            return 0.0
        used = meter.used_ratio(now)
        if self.policy.enforce and meter.rate(now) is not None:
            return used
        rate = self.rate_of_all(now) / meter.limit
        went_over = now - self.over_at <= self.policy.span and not self.policy.enforce
        return max(used, rate if went_over else min(rate, MOST_WITHIN_QUOTA))

    @property
    def counted(self) -> int:
        """The total as a counter that never falls: after a refund it stays the same until the total exceeds it."""
        self._counted = max(self._counted, self.amount_total)
        return self._counted

    def tally(self) -> Tally:
        whole = Tally()
        whole.amount = self.counted
        whole.throttled = self.throttled_total
        whole.unenforced = self.unenforced_total
        whole.throttle_seconds = self.throttle_seconds_total
        whole.early = self.early_total
        whole.early_seconds = self.early_seconds_total
        return whole

    def forgettable(self, now: float, idle_seconds: float) -> bool:
        """True if a new bucket would make the same decisions, and the figures are old."""
        unused = self.connections == 0 and self.reserved == 0 and now - self.last_used >= idle_seconds
        return unused and (self.meter is None or self.meter.idle(now))

    def forget(self, successor: Callable[["Bucket", float], "Bucket"]) -> None:
        """Pass all later charges on. A request that is under way may keep this bucket for as long as its answer takes."""
        self.meter = None
        self.successor = successor

    def _verdict(self, meter: Meter, delay: float, now: float) -> QuotaVerdict:
        enforced = self.policy.enforce
        if not enforced and (others := self._used_by_others()) > 0:
            # Each gateway sees the debt of all gateways. Counted in proportion to their use, a debt counts once.
            own = self.used_lately()
            delay *= own / (own + others)
        if delay < LEAST_DELAY:
            return 0.0, False
        self.episode.throttled(delay, now)
        self.over_at = now
        self.throttled_total += 1
        self.throttle_seconds_total += delay
        self.totals.note(delay)
        if enforced:
            return delay, True
        self.unenforced_total += 1
        meter.forgive(now)
        return delay, False
