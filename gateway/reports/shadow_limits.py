"""Shadow limits: the throttles that they would have caused."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.reports.job.columns import moment, ratio
from gateway.reports.job.phrases import counted, duration, percent
from gateway.reports.job.plots import bars, kind_label, named
from gateway.reports.report import ENTITY, Finding, Plot, Report, ReportRow, Tables
from gateway.reports.top_throttled import AMOUNTS


def _build(tables: Tables) -> DataFrame:
    waited = F.col("throttle_ms") / 1000
    return (
        tables.table("shadows")
        .groupBy(*ENTITY, "quota", "limit")
        .agg(
            F.sum("minutes").alias("active_minutes"),
            F.sum("throttled_minutes").alias("throttled_minutes"),
            F.sum("seconds").alias("active_seconds"),
            F.sum("amount").alias("used_amount"),
            F.sum("throttled").alias("throttled"),
            F.sum("throttle_ms").alias("throttle_ms"),
            F.max("throttle_max_ms").alias("throttle_max_ms"),
            F.min("first_ms").alias("first_ms"),
            F.max("last_ms").alias("last_ms"),
        )
        .withColumns(
            {
                "delayed_fraction": ratio(waited, waited + F.col("active_seconds")),
                "since": moment("first_ms"),
                "until": moment("last_ms"),
            }
        )
        .drop("first_ms", "last_ms")
    )


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    seconds = [(kind_label(row), row["throttle_ms"] / 1000) for row in rows if row["throttle_ms"]]
    return [bars(seconds, "Throttle time that shadow limits would have caused", "seconds")] if seconds else []


def _findings(rows: Sequence[ReportRow]) -> Sequence[Finding]:
    over = [row for row in rows if row["throttled"]]
    found = []
    if over:
        worst = max(over, key=lambda row: row["throttle_ms"])
        limits = counted(len(over), "shadow limit", "shadow limits")
        found.append(
            Finding(
                f"{limits} would have throttled for {duration(sum(row['throttle_ms'] for row in over) / 1000)};"
                f" {named(worst)} would have waited {percent(worst['delayed_fraction'])} of its time.",
                "Talk to the owners of these clients, or raise the limit, before you make it a real one.",
            )
        )
    if quiet := len(rows) - len(over):
        found.append(
            Finding(
                f"{counted(quiet, 'shadow limit', 'shadow limits')} would have throttled nobody.",
                "Move such a limit out of shadow to enforce it.",
            )
        )
    return found


REPORT = Report(
    name="shadow_limits",
    order=12,
    title="Shadow limits",
    question="How often, and for how long, would the shadow limits have throttled their clients?",
    nothing="No shadow limit was measured in this period.",
    sort=("-throttle_ms", *ENTITY, "quota", "limit"),
    columns={
        "quota": "the configured entity of the shadow limit",
        "limit": f"units per second: {AMOUNTS}",
        "active_minutes": "minutes with use; throttled_minutes: minutes with such a throttle",
        "throttled": "requests that would have been throttled",
        "throttle_ms": "the time by which the same work would have taken longer; it may exceed the period",
        "delayed_fraction": "throttle time / (throttle time + active time): the share of its time that the client would wait",
    },
    build=_build,
    plots=_plots,
    findings=_findings,
)
