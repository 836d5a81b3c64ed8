"""The usage of volumes, its limits, and the throttle between the soft and the hard limit."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

_PERCENT = 100.0

LimitTypeName = Literal["ConsumedSpace", "MinFreeBytes", "MinFreePercentage"]
"""The values of `LimitType`, as the config and the usage message have them."""


class LimitType(StrEnum):
    """The unit of a limit's level, named as in Strimzi's proposal (docs/decisions/017)."""

    CONSUMED_SPACE = "ConsumedSpace"  # bytes in use
    MIN_FREE_BYTES = "MinFreeBytes"  # bytes that must stay free
    MIN_FREE_PERCENTAGE = "MinFreePercentage"  # percent of the capacity that must stay free, 0 to 100


@dataclass(frozen=True, slots=True)
class Limit:
    """The level is in bytes or percent, never negative."""

    type: LimitType
    level: float

    def reached_at(self, capacity: int) -> float:
        """The consumed bytes at which a volume of this capacity reaches the limit; negative if it always does."""
        match self.type:
            case LimitType.CONSUMED_SPACE:
                return self.level
            case LimitType.MIN_FREE_BYTES:
                return capacity - self.level
            case LimitType.MIN_FREE_PERCENTAGE:
                return capacity * (1.0 - self.level / _PERCENT)

    @property
    def above_100_percent(self) -> bool:
        """True for a limit that no volume can keep, as it asks for more than the capacity."""
        return self.type is LimitType.MIN_FREE_PERCENTAGE and self.level > _PERCENT

    def __str__(self) -> str:
        return f"{self.type.value} {self.level:g}"


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume of a broker, in bytes. `hard` and `soft` are its own limits; None means that the broker's limit applies."""

    name: str
    capacity: int
    consumed: int
    hard: Limit | None = None
    soft: Limit | None = None


@dataclass(frozen=True, slots=True)
class VolumeUsage:
    """A broker's volumes at `snapshot_at` (seconds since the epoch), and the broker's limits."""

    broker: int
    snapshot_at: float
    hard: Limit
    soft: Limit
    volumes: tuple[Volume, ...]


def over_hard(volume: Volume, hard: Limit) -> bool:
    return volume.consumed >= hard.reached_at(volume.capacity)


def throttle_of(volume: Volume, soft: Limit, hard: Limit) -> float:
    """0.0 up to the soft limit, rising in proportion to 1.0 at the hard limit.

    Limits of different types may be in reverse order. There is nothing between the two then.
    """
    if over_hard(volume, hard):
        return 1.0
    begin, end = soft.reached_at(volume.capacity), hard.reached_at(volume.capacity)
    if volume.consumed <= begin or begin >= end:
        return 0.0
    return (volume.consumed - begin) / (end - begin)
