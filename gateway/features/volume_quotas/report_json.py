"""The volume usage quota as JSON."""

from typing import Any

from gateway.features.volume_quotas.report import VolumesReport


def volumes_json(report: VolumesReport) -> dict[str, Any]:
    """The volume usage quota as `/api/volumes` and the live page show it."""
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
