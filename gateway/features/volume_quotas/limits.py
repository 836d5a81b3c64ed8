"""Limits of a volume's usage, and how far a volume has gone from the soft one to the hard one."""

from dataclasses import dataclass
from enum import StrEnum

_PERCENT = 100.0


class LimitType(StrEnum):
    """What a limit's level means, by the proposal's names."""

    CONSUMED_SPACE = "ConsumedSpace"  # bytes in use
    MIN_FREE_BYTES = "MinFreeBytes"  # bytes that are to stay free
    MIN_FREE_PERCENTAGE = "MinFreePercentage"  # percent of the capacity, 0 to 100, that are to stay free


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of one type; the level is bytes or percent, never negative."""

    type: LimitType
    level: float

    def reached_at(self, capacity: int) -> float:
        """The consumed bytes at which a volume of that capacity reaches the limit; below 0 where it always has."""
        match self.type:
            case LimitType.CONSUMED_SPACE:
                return self.level
            case LimitType.MIN_FREE_BYTES:
                return capacity - self.level
            case LimitType.MIN_FREE_PERCENTAGE:
                return capacity * (1.0 - self.level / _PERCENT)

    def __str__(self) -> str:
        return f"{self.type.value} {self.level:g}"


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume of a broker, in bytes. `consumed` is the capacity less what is free to be used.

    `hard` and `soft` are its own limits; None: those of its broker hold.
    """

    name: str
    capacity: int
    consumed: int
    hard: Limit | None = None
    soft: Limit | None = None


def over_hard(volume: Volume, hard: Limit) -> bool:
    """Whether a volume has reached its hard limit."""
    return volume.consumed >= hard.reached_at(volume.capacity)


def throttle_of(volume: Volume, soft: Limit, hard: Limit) -> float:
    """How far a volume is from its soft limit (0.0, no throttle) to its hard one (1.0), in proportion.

    Where soft comes not before hard, which can be when their types differ, there is nothing between the two.
    """
    if over_hard(volume, hard):
        return 1.0
    begin, end = soft.reached_at(volume.capacity), hard.reached_at(volume.capacity)
    if volume.consumed <= begin or begin >= end:
        return 0.0
    return (volume.consumed - begin) / (end - begin)
