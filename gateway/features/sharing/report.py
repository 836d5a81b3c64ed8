"""The state of sharing, for metrics and the admin API."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class SharingStatus:
    """A member's counts; `skipped` by reason."""

    members: int = 1
    reachable: bool = False
    left_out_total: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class SharingReport:
    """`members` includes this gateway; `reachable` is True while this gateway reads its own messages back.

    `entities` counts entities with remembered use, here and at peers. `skipped` counts unusable messages by reason. A
    problem is empty if there is none.
    """

    identity: str
    topic: str
    interval_seconds: float
    when_unreachable: str
    members: int
    reachable: bool
    entities: int
    messages_total: int
    published_total: int
    publication_errors_total: int
    left_out_total: int
    skipped: Mapping[str, int]
    reader_problem: str
    publisher_problem: str
