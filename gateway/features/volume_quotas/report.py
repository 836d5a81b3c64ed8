"""The state of the volume quotas, for metrics and the admin API."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.features.volume_quotas.rules import VolumeVerdict, WhenUnknown
from gateway.quotas.snapshot import ThrottleTotals


@dataclass(frozen=True, slots=True)
class PublisherReport:
    """State of a publisher. `age` is in seconds since its last publication, None before the first one."""

    connected: bool
    problem: str
    age: float | None
    published_total: int
    publication_errors_total: int
    source_errors_total: int


@dataclass(frozen=True, slots=True)
class VolumesReport:
    """`publishes` is True if this gateway publishes usage itself. `delay_seconds` is the present delay of each Produce request.
    `ages` has the seconds since the capture of each active broker's usage; after `freshness_seconds` the usage is unknown.
    `skipped` counts unusable messages by reason."""

    verdict: VolumeVerdict
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


def volumes_json(report: VolumesReport) -> dict[str, Any]:
    """The report for `/api/volumes` and the live page."""
    verdict = report.verdict
    return {
        "state": verdict.state.value,
        "factor": verdict.factor,
        "reason": verdict.reason,
        "why": verdict.why,
        "enforced": report.enforced,
        "delay_seconds": report.delay_seconds,
        "freshness_seconds": report.freshness_seconds,
        "usage_age_seconds": {str(broker): round(age, 3) for broker, age in report.ages.items()},
        "unknown": [{"broker": broker, "usage": what} for broker, what in verdict.unknown],
        "volumes": [
            {
                "broker": row.broker,
                "volume": row.volume.name,
                "capacity_bytes": row.volume.capacity,
                "consumed_bytes": row.volume.consumed,
                "soft": {"type": row.soft.type.value, "level": row.soft.level},
                "hard": {"type": row.hard.type.value, "level": row.hard.level},
                "factor": 1.0 - row.throttle,
            }
            for row in verdict.rows
        ],
        "reader": {"connected": report.reader_connected, "problem": report.reader_problem},
        "publisher": {"connected": report.publisher_connected, "problem": report.publisher_problem}
        if report.publishes
        else None,
        "source_problem": report.source_problem,
        "skipped": dict(report.skipped),
    }
