"""Quotas that several gateways share: their meters, and the accounts of use that gateways publish to each other.

Each gateway charges its own use at once, and the use of its peers when a message reports it. Until then, it presumes that the
peers use their part as well: its own charge of 1 counts `1 / share`. The presumed amount is given back once the message has
had time to arrive. So gateways that unmute their clients at the same moment do not use the same balance twice. In the long run
only the reported use counts.

All gateways know nearly the same balance, so their clients would come back at one moment. Each gateway therefore waits for a
turn as well. The turns are spread over the time that the peers' requests take.
"""

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple, Protocol

from gateway.quotas.entity import Tags
from gateway.quotas.group_meter import GroupMeter
from gateway.quotas.meter import Meter, PastUse, carry_over

ROLLOUT_SECONDS: Final = 300.0
"""The time for which peers may have another limit, after this one has changed."""

LONGEST_PEER_TURN_SECONDS: Final = 20.0
"""The longest wait for a turn, besides the debt. Some clients give up a connection after 30 s."""

TURN_PART: Final = 0.5
"""Of an `exact` meter's burst: its longest turn. Balances rise while clients wait, and a small bucket overflows."""

LATE_PART: Final = 2.0 / 3.0
"""Of the horizon, so two intervals: use waits for up to one until it is published, and arrives within another one."""

_WHOLE: Final = 1.0
_GOLDEN: Final = 0.6180339887498949
_FEW: Final = 7.0
"""If so few peers use the quota, or use at most this many times the own part, nobody waits for a turn."""


class Part(NamedTuple):
    """A gateway's `share` of a quota, the `horizon` in seconds, and its first `turn` in [0, 1): see `SharedMeter`."""

    share: float = 1.0
    horizon: float = 0.0
    turn: float = 0.0


class SharedMeter(Meter):
    """A meter of a quota that peers use as well.

    `share` in (0, 1] is this gateway's part; 1.0 presumes nothing. A charge of `amount` presumes at most
    `balance + limit * horizon - amount` units. So no client waits for longer than `horizon` because of presumed use.

    Reported use replaces presumed use at once. If both counted for an interval, the balance would swing, and all clients would
    follow it. Among many peers, a client in debt also waits for a turn. It lies within the time in which the quota pays for one
    request of each peer that uses it. The first `turn` differs from gateway to gateway, and each charge moves it on.

    `exact` is for a token bucket whose burst is about an interval: the newest use counts for the share, and turns are short.
    """

    __slots__ = (
        "_apart_until", "_changed_at", "_crowd", "_extra", "_horizon", "_inner", "_latest", "_longest_turn", "_older",
        "_presumed", "_settled", "_turn", "_wait", "exact",
    )  # fmt: skip

    def __init__(
        self, inner: Meter, limit: float, share: float = 1.0, horizon: float = 0.0, turn: float = 0.0, *, exact: bool = False
    ) -> None:
        super().__init__(limit)
        self._inner = inner
        self._changed_at = -inf  # the limit
        self._apart_until = -inf  # the debt has been cleared here, and may not yet be cleared at peers
        self.exact = exact
        self._turn = turn
        self._longest_turn = self._turns(horizon, users=0)
        self._wait = 0.0  # seconds from the end of a debt to this gateway's turn
        self._extra = _WHOLE / share - _WHOLE  # presumed units per own unit
        self._crowd = self._extra  # the peers that may come back at one moment
        self._horizon = horizon
        self._presumed = 0.0  # in this interval
        self._older = 0.0  # in earlier intervals, which ended at the time `_settled`
        self._settled = -inf
        self._latest = 0.0  # by the last charge in this interval

    def charge(self, amount: float, now: float) -> float:
        """Record own use, and the presumed use of the peers in the same time."""
        if self._extra > 0.0 and amount > 0:
            room = self._inner.balance(now) + self._limit * self._horizon - amount
            presumed = amount * self._extra
            if presumed > room:
                presumed = room if room > 0.0 else 0.0
            self._latest = presumed
            self._presumed += presumed
            delay = self._inner.charge(amount + presumed, now)
            if delay <= 0.0 or self._crowd <= _FEW:
                return delay
            self._turn = (self._turn + _GOLDEN) % _WHOLE
            self._wait = self._turn * min(amount * self._crowd / self._limit, self._longest_turn)
            return delay + self._wait
        return self._inner.charge(amount, now)

    def admit(self, amount: float, patience: float, now: float) -> float:
        """Judge the own amount before the use that is presumed beside it: a small balance would refuse each first use.

        So of several gateways, each may let one use pass. A use with `patience` waits for presumed use and for its turn. Its
        own debt may then be as long as its patience, besides the horizon of earlier presumed use.
        """
        delay = self._inner.charge(amount, now)
        self._latest = 0.0
        if self._extra <= 0.0 or delay > patience + min(self._horizon, patience):
            return delay
        self._inner.charge(-amount, now)
        return min(self.charge(amount, now), patience)

    def take_back(self, amount: float, now: float) -> None:
        """The use that the last charge presumed is taken back as well."""
        presumed = min(self._latest, self._presumed, amount * self._extra)
        self._latest = 0.0
        self._presumed -= presumed
        self._inner.take_back(amount + presumed, now)

    def charge_others(self, amount: float, now: float, *, no_debt: bool = False) -> None:
        """Record the use of a peer (negative: the peer took it back).

        Peers may leave the same debt as own use: requests may be worth more than the burst. In Kafka's window, which forgets
        older use, an amount counts up to the capacity. Peers with a higher limit would leave a debt that lasts. So for
        `ROLLOUT_SECONDS` after a change of the limit, the debt is at most the capacity. With `no_debt` no debt is left.
        """
        if amount > 0:
            if not no_debt:
                amount -= self._replace(amount)
            left = self._inner.tokens(now)
            if left is None:
                amount = min(amount, self._inner.capacity)
            elif no_debt:
                amount = min(amount, max(left, 0.0))
            elif now - self._changed_at < ROLLOUT_SECONDS and not self.exact:  # rights in a tree change all the time
                amount = min(amount, max(left + self._inner.capacity, 0.0))
        if amount > 0 and not no_debt and self.brief:
            self._inner.charge_late(amount, LATE_PART * self._horizon, now)
        else:
            self._inner.charge(amount, now)

    def comparable(self, now: float) -> float | None:
        """The balance without presumed use: all gateways should have the same one.

        None without a balance, and for `ROLLOUT_SECONDS` after a cleared debt. None as well for a `brief` bucket that is not
        `exact`.
        """
        left = self._inner.tokens(now)
        if left is None or now < self._apart_until or (self.brief and not self.exact):
            return None
        return left + self.presumed

    @property
    def brief(self) -> bool:
        """True if the burst is shorter than the time that messages take."""
        return self._inner.capacity < self._limit * self._horizon

    def lower(self, excess: float, now: float) -> None:
        """Lower the balance by so many units (negative: raise it), if it is comparable."""
        if self.comparable(now) is not None:
            self._inner.adjust(excess, now)

    def _replace(self, amount: float) -> float:
        """Take up to `amount` units out of the presumed ones, the oldest first. They stay charged. Returns their number."""
        older = min(amount, self._older)
        newer = min(amount - older, self._presumed)
        self._older -= older
        self._presumed -= newer
        return older + newer

    def settle(
        self, share: float, horizon: float, now: float, *, users: int = 0, confirm: bool = False, hold: bool = False
    ) -> None:
        """End an interval: give back the amounts that were presumed before this interval.

        `users` peers are known to use the quota. Without one, a client waits for its turn for at most two horizons.
        With `confirm` they stay charged for good: peers used them, but no message will report it.
        With `hold` they stay for now, because no message can have arrived yet. `hold` wins over `confirm`.
        """
        if not 0.0 < share <= _WHOLE:
            raise ValueError(f"share {share} must be above 0 and at most 1")
        if hold:
            self._older += self._presumed
        else:
            if self._older > 0.0 and not confirm:
                self._inner.give_back(self._older, self._settled, now)
            self._older = self._presumed
            if self.exact and self.brief:
                # Without the presumed use, the bucket would have been full meanwhile, as it is at peers.
                excess = self._inner.balance(now) + self._older - self._inner.capacity
                if excess > 0.0:
                    self._inner.adjust(excess, now)
        self._presumed = self._latest = 0.0
        self._settled = now
        self._extra = _WHOLE / share - _WHOLE
        self._horizon = horizon
        self._crowd = min(self._extra, float(users)) if users else self._extra
        self._longest_turn = self._turns(horizon, users=users)
        if self._crowd <= _FEW:
            self._wait = 0.0

    def _turns(self, horizon: float, *, users: int) -> float:
        """The longest turn in seconds."""
        longest = LONGEST_PEER_TURN_SECONDS if users else min(2.0 * horizon, LONGEST_PEER_TURN_SECONDS)
        return min(longest, TURN_PART * self._inner.capacity / self._limit) if self.exact else longest

    @property
    def share(self) -> float:
        """This gateway's part of the quota."""
        return _WHOLE / (self._extra + _WHOLE)

    @property
    def presumed(self) -> float:
        """The units that are charged on presumption."""
        return self._presumed + self._older

    def delay(self, now: float, promised: float = 0.0, ahead: float = 0.0) -> float:
        """Presumes that peers promise in proportion, at most `limit * horizon` units. `ahead` counts for all gateways."""
        if self._extra > 0.0 and promised > 0.0:
            promised += min(promised * self._extra, self._limit * self._horizon)
        delay = self._inner.delay(now, promised, ahead * (self._extra + _WHOLE))
        return delay + self._wait if self._wait > 0.0 and self._inner.delay(now) > 0.0 else delay

    def rate(self, now: float) -> float | None:
        return self._inner.rate(now)

    def tokens(self, now: float) -> float | None:
        return self._inner.tokens(now)

    def balance(self, now: float) -> float:
        return self._inner.balance(now)

    def used_ratio(self, now: float) -> float:
        return self._inner.used_ratio(now)

    # The next three return this gateway's part of the whole quota's value.

    def fetch_allowance(self, now: float, promised: float = 0.0, among: int = 1) -> float:
        whole = self._extra + _WHOLE
        return self._inner.fetch_allowance(now, promised * whole, among) / whole

    def saved(self, now: float) -> float:
        return self._inner.saved(now) / (self._extra + _WHOLE)

    @property
    def portion(self) -> float:
        return self._inner.portion / (self._extra + _WHOLE)

    @property
    def takes_back(self) -> bool:
        return self._inner.takes_back

    @property
    def capacity(self) -> float:
        return self._inner.capacity

    def set_limit(self, limit: float, now: float) -> None:
        self._inner.set_limit(limit, now)
        if limit != self._limit:
            self._limit, self._changed_at = limit, now

    def set_window(self, inner: Meter, now: float) -> None:
        """Continue with `inner`, a new meter of another window. Use, debts and presumed amounts are kept."""
        carry_over(self._inner, inner, now)
        self._inner = inner

    def forgive(self, now: float) -> None:
        """No presumed amount is given back afterwards."""
        self._inner.forgive(now)
        self._apart_until = now + ROLLOUT_SECONDS
        self._presumed = self._older = self._latest = self._wait = 0.0

    def idle(self, now: float) -> bool:
        return self._presumed == 0.0 and self._older == 0.0 and self._inner.idle(now)

    def dump(self, now: float) -> list[PastUse]:
        """The use of all gateways. The presumed amounts are taken out of the newest entries, as they were charged last."""
        presumed = self.presumed
        kept: list[PastUse] = []
        for each in reversed(self._inner.dump(now)):
            without = min(max(each.amount, 0.0), presumed)
            presumed -= without
            kept.append(PastUse(each.began, each.ended, each.amount - without))
        kept.reverse()
        return kept

    def restore(self, used: Sequence[PastUse], now: float) -> None:
        self._presumed = self._older = self._latest = self._wait = 0.0
        self._inner.restore(used, now)


UsageKey = tuple[str, Tags | str]
"""The key of a `UsageAccount`: a kind, and the account's name in the kind: a bucket's tags, or a string."""


class UsageAccount(Protocol):
    """The use of something that gateways share: of a bucket, a listener, a topic. Amounts are in its unit."""

    shared_total: int
    """The part of `total()` that this gateway has published."""

    def total(self) -> int:
        """The use through this gateway since the account exists. It falls only if something is given back."""

    def recent(self, now: float) -> int:
        """The part of `total()` that the algorithm still remembers."""

    def capacity(self) -> float:
        """The units that may be used at once. 0.0 without a quota: nothing is shared then."""

    def shared_meter(self) -> SharedMeter | None:
        """The meter that presumes the use of peers. None: nothing is presumed."""

    def charge_others(self, amount: int, now: float, *, no_debt: bool) -> None:
        """Charge the use of a peer. `total()` stays the same. `no_debt`: the use is old, so no client waits for it."""


def as_shared(meter: Meter | None) -> SharedMeter | None:
    if isinstance(meter, GroupMeter):
        meter = meter.own
    return meter if isinstance(meter, SharedMeter) else None
