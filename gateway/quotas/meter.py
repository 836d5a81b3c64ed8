"""The interface of a rate limit, behind which the two algorithms stand."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Final, NamedTuple

MAX_THROTTLE_TIME_MS = 2**31 - 1

FETCH_SLICE_SECONDS: Final = 0.05
"""A fetch that finds nothing saved up may take this much of the quota at once: small enough to flow evenly, large enough that
a fast consumer is not slowed by round trips."""


@dataclass(frozen=True, slots=True)
class Window:
    """Kafka's `quota.window.num` and `quota.window.size.seconds`."""

    samples: int = 11
    seconds: float = 1.0


class Spent(NamedTuple):
    """An amount that was used between two moments, given as the seconds that have passed since them (`began` >= `ended`)."""

    began: float
    ended: float
    amount: float


class Meter(ABC):
    """What has been used of one limit, and how long who is over it has to wait. `now` is in monotonic seconds."""

    @abstractmethod
    def charge(self, amount: float, now: float) -> float:
        """Record `amount`; return the delay in seconds after which the limit is kept again, 0.0 where it is kept now."""

    @abstractmethod
    def delay(self, now: float, promised: float = 0.0, ahead: float = 0.0) -> float:
        """The delay in seconds that a charge of nothing would get, if `promised` had been charged as well, and `ahead`, which
        other clients of this gateway will use before."""

    @abstractmethod
    def rate(self, now: float) -> float | None:
        """The observed rate per second, where the algorithm keeps one."""

    @abstractmethod
    def tokens(self, now: float) -> float | None:
        """What is left, below zero for a debt, where the algorithm keeps it."""

    @abstractmethod
    def balance(self, now: float) -> float:
        """The amount that may be charged before the limit is reached; below zero for a debt."""

    @abstractmethod
    def used_ratio(self, now: float) -> float:
        """The fraction of the limit that is used: throttling begins above 1.0."""

    @abstractmethod
    def fetch_allowance(self, now: float, promised: float = 0.0, among: int = 1) -> float:
        """The maximum number of bytes to ask for in a Fetch that begins now, for one of `among` consumers, while `promised`
        bytes are set aside."""

    def saved(self, now: float) -> float:
        """The bytes that may be used at once here without going over."""
        return max(self.balance(now), 0.0)

    @property
    @abstractmethod
    def portion(self) -> float:
        """The bytes that a Fetch may take at once when nothing is saved up."""

    @property
    @abstractmethod
    def takes_back(self) -> bool:
        """Whether a response that goes over is not charged and not sent, as in Kafka, rather than sent and waited for."""

    @property
    @abstractmethod
    def capacity(self) -> float:
        """How much may be used at once by who has used nothing yet."""

    @abstractmethod
    def set_limit(self, limit: float, now: float) -> None:
        """Change the limit; what has been used stays."""

    @abstractmethod
    def forgive(self, now: float) -> None:
        """Act as if whoever is over the limit had waited: for measuring without enforcing."""

    @abstractmethod
    def idle(self, now: float) -> bool:
        """Whether nothing that was used still counts, so that a new meter would answer alike."""

    @abstractmethod
    def spent(self, now: float) -> list[Spent]:
        """What was used and still counts, as the algorithm remembers it, the oldest first."""

    @abstractmethod
    def replay(self, spent: Sequence[Spent], now: float) -> None:
        """Forget everything, and remember instead what another meter of the same algorithm, limit and window had `spent`."""


def carry_over(old: Meter, new: Meter, now: float) -> None:
    """Fill `new`, of the same algorithm and limit but another window, with the use and the debt of `old`.

    A smaller window makes no debt out of use that was within the limit, and a larger burst pays no debt off. Only Kafka's
    window has no debt apart from its samples: there a larger window allows what it would have allowed all the time.
    """
    new.replay(old.spent(now), now)
    debt = max(-old.balance(now), 0.0)
    balance = new.balance(now)
    if balance < -debt:
        new.forgive(now)
        new.charge(debt, now)
    elif debt > 0.0 and new.tokens(now) is not None:
        new.charge(balance + debt, now)


def throttle_time_ms(delay: float) -> int:
    """Seconds as Kafka's int32 of milliseconds, rounded half up.

    A long delay saturates: Kafka keeps the low 32 bits of it, which may be negative and let the client through.
    """
    return min(floor(delay * 1000.0 + 0.5), MAX_THROTTLE_TIME_MS)
