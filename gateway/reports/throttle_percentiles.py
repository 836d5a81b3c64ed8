"""Percentiles of the throttle times by kind and hour."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame

from gateway.reports.job.phrases import counted, duration
from gateway.reports.job.plots import lines
from gateway.reports.report import Finding, Plot, Report, ReportRow, Tables

_LONG_MS: Final = 1000
"""A throttle time above it is long: clients with short request timeouts may time out."""
_BY: Final = ("date", "hour", "kind", "enforced")


def _build(tables: Tables) -> DataFrame:
    return tables.table("throttle_percentiles")


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    series = {}
    for kind, noted in sorted({(str(row["kind"]), not row["enforced"]) for row in rows}):
        of_kind = [row for row in rows if row["kind"] == kind and row["enforced"] is not noted]
        x = [f"{row['date']} {row['hour']:02d}:00" for row in of_kind]
        for name in ("p50_ms", "p99_ms"):
            label = f"{kind} {name.removesuffix('_ms')}{', not enforced' if noted else ''}"
            series[label] = (x, [row[name] for row in of_kind])
    return [lines("Throttle time by hour: median and 99th percentile", "ms", series, log=True)]


def _findings(rows: Sequence[ReportRow]) -> Sequence[Finding]:
    long = [row for row in rows if row["enforced"] and row["p99_ms"] > _LONG_MS]
    if not long:
        return []
    worst = max(long, key=lambda row: row["p99_ms"])
    hours = counted(len({(row["date"], row["hour"]) for row in long}), "hour", "hours")
    return [
        Finding(
            f"The 99th percentile of throttle times exceeded {duration(_LONG_MS / 1000)} in {hours}; the longest was"
            f" {duration(worst['p99_ms'] / 1000)} ({worst['kind']}, {worst['date']} {worst['hour']:02d}:00).",
            "Look up the clients under Top throttled entities. Smaller requests get shorter throttle times, and so do requests"
            " under a higher limit.",
        )
    ]


REPORT = Report(
    name="throttle_percentiles",
    order=1,
    title="Throttle time percentiles",
    question="How long were the throttle times, by kind and hour?",
    nothing="No client was throttled in this period.",
    sort=_BY,
    columns={
        "enforced": "false if Weir only recorded the throttle times and did not enforce them",
        "throttled": "throttle decisions",
        "p50_ms": "half of the throttle times were at most this long; exact below 32 ms, otherwise up to 6.25 % too high",
    },
    build=_build,
    plots=_plots,
    findings=_findings,
)
