"""The interface of a rate limit. Each algorithm is one module."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Final, NamedTuple

from protocol.throttle import MAX_THROTTLE_MS

FETCH_SLICE_SECONDS: Final = 0.05
"""A Fetch that finds an empty bucket may take this much of the quota at once. A smaller slice would slow a fast consumer by
round trips, a larger one would flow unevenly."""


@dataclass(frozen=True, slots=True)
class Window:
    """Kafka's `quota.window.num` and `quota.window.size.seconds`."""

    samples: int = 11
    seconds: float = 1.0

    @property
    def length(self) -> float:
        """In seconds, of all samples."""
        return self.samples * self.seconds


class PastUse(NamedTuple):
    """An amount that was used between two moments. Both are seconds ago, so `began` >= `ended`."""

    began: float
    ended: float
    amount: float


class Meter(ABC):
    """The use of one limit, in units. All times are seconds on the monotonic clock."""

    __slots__ = ("_limit",)

    def __init__(self, limit: float) -> None:
        self._limit = positive(limit)

    @property
    def limit(self) -> float:
        """Per second. The meter of a group in a tree runs at the rate of the last division."""
        return self._limit

    @abstractmethod
    def charge(self, amount: float, now: float) -> float:
        """Record `amount` (negative: give back); return the delay in seconds after which the use is within the limit again."""

    @abstractmethod
    def delay(self, now: float, promised: float = 0.0, ahead: float = 0.0) -> float:
        """The delay in seconds that a charge of nothing would get now.

        `promised` units count as used. Other clients of this gateway will use the units `ahead` first.
        """

    def admit(self, amount: float, patience: float, now: float) -> float:  # noqa: ARG002
        """As `charge`, for a use that may be refused. The caller refuses it if the delay is above `patience` seconds.

        It then takes the use back. Neither a turn nor use that peers are presumed to make meanwhile makes the delay that long.
        """
        return self.charge(amount, now)

    def charge_late(self, amount: float, seconds: float, now: float) -> float:  # noqa: ARG002
        """As `charge`, for use that began up to so many seconds ago."""
        return self.charge(amount, now)

    def take_back(self, amount: float, now: float) -> None:
        """Undo the last charge, of `amount` units."""
        self.charge(-amount, now)

    def give_back(self, amount: float, charged: float, now: float) -> None:  # noqa: ARG002
        """Give back units that were charged at the time `charged` or shortly before."""
        self.charge(-amount, now)

    def adjust(self, amount: float, now: float) -> None:
        """Take units off the balance (negative: add units) that nobody has used: the balance of all gateways is another one."""
        self.charge(amount, now)

    @abstractmethod
    def rate(self, now: float) -> float | None:
        """The observed rate per second. None: the algorithm has no rate."""

    @abstractmethod
    def tokens(self, now: float) -> float | None:
        """The balance, below zero for a debt. None: the algorithm has no tokens."""

    def balance(self, now: float) -> float:
        """The units that may be charged before the limit is reached; below zero for a debt."""
        return self.tokens(now) or 0.0

    @abstractmethod
    def used_ratio(self, now: float) -> float:
        """The used fraction of the limit. Throttling begins above 1.0."""

    @abstractmethod
    def fetch_allowance(self, now: float, promised: float = 0.0, among: int = 1) -> float:
        """The maximum number of bytes to request in a Fetch that starts now, for one of `among` consumers.

        `promised` bytes are reserved for unanswered Fetches.
        """

    def saved(self, now: float) -> float:
        """The units that this gateway may use at once without a debt."""
        return max(self.balance(now), 0.0)

    @property
    def portion(self) -> float:
        """The bytes that a Fetch may take from an empty bucket."""
        return self._limit * FETCH_SLICE_SECONDS

    @property
    def takes_back(self) -> bool:
        """True if a response over the limit is neither charged nor sent (Kafka), False if it is sent and then waited for."""
        return False

    @property
    @abstractmethod
    def capacity(self) -> float:
        """The units that may be used at once by a client that has used nothing yet."""

    @abstractmethod
    def set_limit(self, limit: float, now: float) -> None:
        """Change the limit and keep the use. Raises ValueError unless `limit` is positive."""

    @abstractmethod
    def forgive(self, now: float) -> None:
        """Act as if the client had waited until it was within the limit."""

    @abstractmethod
    def idle(self, now: float) -> bool:
        """True if a new meter would give the same answers."""

    @abstractmethod
    def dump(self, now: float) -> list[PastUse]:
        """The use that still counts, oldest first."""

    @abstractmethod
    def restore(self, used: Sequence[PastUse], now: float) -> None:
        """Replace the use by the dump of a meter of the same algorithm, limit and window."""


def positive(limit: float) -> float:
    """The limit itself. Raises ValueError if no meter can have it."""
    if limit <= 0:
        raise ValueError(f"limit {limit} must be positive")
    return limit


def carry_over(old: Meter, new: Meter, now: float) -> None:
    """Fill `new`, of the same algorithm and limit but another window, with the use and the debt of `old`.

    A smaller window makes no debt out of use within the limit, and a larger burst pays no debt off. The exception is Kafka's
    window, whose only debt is its samples: a larger window allows the use that it would always have allowed.
    """
    new.restore(old.dump(now), now)
    debt = max(-old.balance(now), 0.0)
    balance = new.balance(now)
    if balance < -debt:
        new.forgive(now)
        new.charge(debt, now)
    elif debt > 0.0 and new.tokens(now) is not None:
        new.charge(balance + debt, now)


def throttle_time_ms(delay: float) -> int:
    """Seconds as Kafka's int32 of milliseconds, rounded half up.

    A long delay saturates. Kafka keeps its low 32 bits, which may be negative and let the client through.
    """
    return floor(min(delay * 1000.0 + 0.5, MAX_THROTTLE_MS))


def precharge(meter: Meter | None, used: float, now: float) -> None:
    """Charge a new meter with its client's recent use, but without a debt from a time without a quota."""
    if meter is not None and used > 0.0:  # a window begins with its first record
        meter.charge(min(used, meter.capacity), now)
