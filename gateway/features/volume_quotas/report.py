"""What metrics and the admin API show of the volume usage quota."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.features.volume_quotas.rules import Verdict, WhenUnknown
from gateway.quotas.snapshot import ThrottleTotals


@dataclass(frozen=True, slots=True)
class PublisherReport:
    """A publisher of usage. `age` is the seconds since its last publication, None before the first one."""

    connected: bool
    problem: str
    age: float | None
    published_total: int
    publication_errors_total: int
    source_errors_total: int


@dataclass(frozen=True, slots=True)
class VolumesReport:
    """A look at it. `skipped` counts usage messages that could not be used, by reason; `publishes`: whether this gateway
    publishes usage itself; `delay_seconds` is what each Produce request waits now. `ages` has the seconds since the capture of
    each active broker's usage; after `freshness_seconds` the usage is unknown."""

    verdict: Verdict
    enforced: bool
    delay_seconds: float
    ages: Mapping[int, float]
    freshness_seconds: float
    when_unknown: WhenUnknown
    publishes: bool
    publisher_connected: bool
    publisher_problem: str
    reader_connected: bool
    reader_problem: str
    source_problem: str
    publication_age: float | None
    published_total: int
    publication_errors_total: int
    source_errors_total: int
    messages_total: int
    skipped: Mapping[str, int]
    throttled_total: int
    refused_total: int
    put_off_total: int
    totals: ThrottleTotals
