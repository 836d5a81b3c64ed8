"""What metrics and the admin API show of the sharing of quotas."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SharingReport:
    """A look at it. `members` are the gateways that share, this one included; `reachable`: whether it hears what is published.

    `entities` are those whose use is remembered, here and at others. `skipped` counts messages that could not be used, by
    reason. Problems are empty where there are none.
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
