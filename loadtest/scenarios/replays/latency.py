"""The figures: the tail readers' latency in the phases of each kind, and the bytes of each class as two sides counted them."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

ALONE, BESIDE = "without replays", "with replays"
ELSEWHERE, UNDIVIDED = "with replays at another gateway", "with replays and no lane"


@dataclass(frozen=True)
class Phase:
    """A time of one kind (`ALONE` and so on), in monotonic seconds.

    `replayed` are the bytes that all replays received, `processors` the mean number of busy processors by process.
    """

    kind: str
    begin: float
    end: float
    replayed: int
    processors: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True)
class Latency:
    """Milliseconds from the call of produce to the consumer, over `samples` records."""

    samples: int
    p50: float
    p90: float
    p99: float
    p999: float
    highest: float


def latency(samples: Iterable[tuple[int, int]], phases: Sequence[Phase]) -> Latency:
    """The latency of the records that were sent within one of the phases. `samples` are nanoseconds: sent, and on the way.

    Raises ValueError without two such records.
    """
    times = [(phase.begin * 1e9, phase.end * 1e9) for phase in phases]
    found = [taken / 1e6 for sent, taken in samples if any(begin <= sent < end for begin, end in times)]
    if len(found) < 2:
        raise ValueError("no record was read in these phases")
    parts = statistics.quantiles(found, n=1000, method="inclusive")
    middle, ninety, high, highest = (round(parts[at - 1], 3) for at in (500, 900, 990, 999))
    return Latency(len(found), middle, ninety, high, highest, round(max(found), 3))


@dataclass(frozen=True)
class Classes:
    """Bytes of Fetch responses while their reader was far behind, and all others."""

    far_behind: int
    others: int

    @property
    def total(self) -> int:
        return self.far_behind + self.others

    def rightly(self, charged: "Classes") -> float:
        """The part of these bytes that was charged to the right group, at least."""
        wrong = max(abs(self.far_behind - charged.far_behind), abs(self.others - charged.others))
        return 1.0 - wrong / self.total
