"""A meter that several gateways keep together: each charges its own use at once and the others' when it hears of it.

Until it hears of it, it presumes that the others use their part as well: a charge of its own counts `1 / share` times. What was
presumed is given back when the truth has had time to arrive. So gateways that let their clients go in the same moment
do not use the same balance twice, and in the long run nothing counts but what was really used.
"""

from collections.abc import Sequence
from typing import Final

from gateway.quotas.meter import Meter, Spent, carry_over

_WHOLE: Final = 1.0


class SharedMeter(Meter):
    """Any meter, with a part of it that others use.

    `share` in (0, 1] is this gateway's part of the use; 1.0, as it is without others, changes nothing. Presumed is at most
    what is left and what flows in during `horizon` seconds: nobody is held longer than that for what may not be true.
    """

    __slots__ = ("_extra", "_horizon", "_inner", "_limit", "_older", "_presumed")

    def __init__(self, inner: Meter, limit: float, share: float = 1.0, horizon: float = 0.0) -> None:
        self._inner = inner
        self._limit = limit
        self._extra = _WHOLE / share - _WHOLE
        self._horizon = horizon
        self._presumed = 0.0
        self._older = 0.0

    def charge(self, amount: float, now: float) -> float:
        """Record own use, and what the others are presumed to use meanwhile."""
        if self._extra > 0.0 and amount > 0:
            left = self._inner.tokens(now)
            if left is None:  # a window: what is presumed is not seen in it, so it is bounded by itself
                left = -self._presumed - self._older
            room = left + self._limit * self._horizon - amount
            presumed = min(amount * self._extra, max(room, 0.0))
            self._presumed += presumed
            return self._inner.charge(amount + presumed, now)
        return self._inner.charge(amount, now)

    def charge_others(self, amount: float, now: float, *, no_debt: bool = False) -> None:
        """Record what another gateway let through (negative: it took it back).

        It leaves no more debt than the capacity, as Kafka's window forgets what is older; with `no_debt` none at all.
        """
        if amount > 0:
            left = self._inner.tokens(now)
            room = self._inner.capacity if left is None else left + (0.0 if no_debt else self._inner.capacity)
            amount = min(amount, max(room, 0.0))
        self._inner.charge(amount, now)

    def settle(self, share: float, horizon: float, now: float, *, confirm: bool = False, hold: bool = False) -> None:
        """An interval is over: give back what was presumed before the last one, or keep it as if it were true (`confirm`), or
        keep it for now, because the truth can't have come yet (`hold`)."""
        if not 0.0 < share <= _WHOLE:
            raise ValueError(f"share {share} must be above 0 and at most 1")
        if hold:
            self._older += self._presumed
        else:
            if self._older > 0.0 and not confirm:
                self._inner.charge(-self._older, now)
            self._older = self._presumed
        self._presumed = 0.0
        self._extra = _WHOLE / share - _WHOLE
        self._horizon = horizon

    @property
    def presumed(self) -> float:
        """What is charged on presumption as yet."""
        return self._presumed + self._older

    def delay(self, now: float, promised: float = 0.0, ahead: float = 0.0) -> float:
        """As the meter has it; what is promised here is promised by the others as well, up to what may be presumed. While the
        bytes `ahead` are served here, the other gateways use their parts."""
        if self._extra > 0.0 and promised > 0.0:
            promised += min(promised * self._extra, self._limit * self._horizon)
        return self._inner.delay(now, promised, ahead * (self._extra + _WHOLE))

    def rate(self, now: float) -> float | None:
        """The observed rate of all gateways per second, where the algorithm keeps one."""
        return self._inner.rate(now)

    def tokens(self, now: float) -> float | None:
        """What is left for all gateways."""
        return self._inner.tokens(now)

    def balance(self, now: float) -> float:
        """The balance of all gateways together."""
        return self._inner.balance(now)

    def used_ratio(self, now: float) -> float:
        """The fraction that all gateways together have used."""
        return self._inner.used_ratio(now)

    def fetch_allowance(self, now: float, promised: float = 0.0, among: int = 1) -> float:
        """This gateway's part of it."""
        whole = self._extra + _WHOLE
        return self._inner.fetch_allowance(now, promised * whole, among) / whole

    def saved(self, now: float) -> float:
        """This gateway's part of it."""
        return self._inner.saved(now) / (self._extra + _WHOLE)

    @property
    def portion(self) -> float:
        """This gateway's part of it."""
        return self._inner.portion / (self._extra + _WHOLE)

    @property
    def takes_back(self) -> bool:
        """As the meter does."""
        return self._inner.takes_back

    @property
    def capacity(self) -> float:
        """How much all gateways together may use at once."""
        return self._inner.capacity

    def set_limit(self, limit: float, now: float) -> None:
        """Change the limit; what has been used stays."""
        self._inner.set_limit(limit, now)
        self._limit = limit

    def set_window(self, inner: Meter, now: float) -> None:
        """Go on with `inner`, a new meter of another window; use, debts and presumptions are kept."""
        carry_over(self._inner, inner, now)
        self._inner = inner

    def forgive(self, now: float) -> None:
        """Act as if whoever is over the limit had waited; nothing presumed is given back then."""
        self._inner.forgive(now)
        self._presumed = self._older = 0.0

    def idle(self, now: float) -> bool:
        """Whether a new meter would answer alike."""
        return self._presumed == 0.0 and self._older == 0.0 and self._inner.idle(now)

    def spent(self, now: float) -> list[Spent]:
        """What was really used, here and elsewhere: what is presumed, which is the newest of it, is left out."""
        presumed = self.presumed
        kept: list[Spent] = []
        for each in reversed(self._inner.spent(now)):
            without = min(max(each.amount, 0.0), presumed)
            presumed -= without
            kept.append(Spent(each.began, each.ended, each.amount - without))
        kept.reverse()
        return kept

    def replay(self, spent: Sequence[Spent], now: float) -> None:
        """Begin with it, and presume nothing."""
        self._presumed = self._older = 0.0
        self._inner.replay(spent, now)
