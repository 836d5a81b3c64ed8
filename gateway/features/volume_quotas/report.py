"""The state of the volume quotas, for metrics and the admin API."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.cluster.log_status import LogStatus
from gateway.features.volume_quotas.config import VolumesConfig
from gateway.features.volume_quotas.limits import Limit
from gateway.features.volume_quotas.rules import VolumeVerdict
from gateway.proxy.produce_gate import ProduceGate


@dataclass(frozen=True, slots=True)
class PublisherReport:
    """The publisher in an agent. `age` is in seconds since its last publication, None before the first one."""

    log: LogStatus
    age: float | None
    source_problem: str
    source_errors_total: int


@dataclass(frozen=True, slots=True)
class VolumesReport(PublisherReport):
    """The watch in a gateway. It also publishes if `config.source` is `log_dirs`.

    `ages` has the seconds since the capture of each active broker's usage. `skipped` counts unusable messages by reason.
    """

    verdict: VolumeVerdict
    config: VolumesConfig
    gate: ProduceGate
    ages: Mapping[int, float]
    skipped: Mapping[str, int]

    @property
    def publishes(self) -> bool:
        return self.config.source == "log_dirs"


def volumes_json(report: VolumesReport) -> dict[str, Any]:
    """The report for `/api/volumes` and the live page."""
    verdict, log = report.verdict, report.log
    return {
        "state": verdict.state.value,
        "factor": verdict.factor,
        "reason": verdict.reason,
        "why": verdict.why,
        "enforced": report.config.enforce,
        "delay_seconds": report.gate.delay,
        "freshness_seconds": report.config.freshness_seconds,
        "usage_age_seconds": {str(broker): round(age, 3) for broker, age in report.ages.items()},
        "unknown": [{"broker": broker, "usage": problem} for broker, problem in verdict.unknown],
        "volumes": [
            {
                "broker": row.broker,
                "volume": row.volume.name,
                "capacity_bytes": row.volume.capacity,
                "consumed_bytes": row.volume.consumed,
                "soft": _limit_json(row.soft),
                "hard": _limit_json(row.hard),
                "factor": 1.0 - row.throttle,
            }
            for row in verdict.rows
        ],
        "reader": {"connected": log.reader.connected, "problem": log.reader.problem},
        "publisher": {"connected": log.publisher.connected, "problem": log.publisher.problem} if report.publishes else None,
        "source_problem": report.source_problem,
        "skipped": dict(report.skipped),
    }


def _limit_json(limit: Limit) -> dict[str, Any]:
    return {"type": limit.type.value, "level": limit.level}
