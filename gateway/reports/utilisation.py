"""The part of its quota that each entity used."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.reports.job.columns import ratio
from gateway.reports.job.hours import NEARLY_FULL
from gateway.reports.job.phrases import counted, percent
from gateway.reports.job.plots import bars, kind_label, named
from gateway.reports.report import ENTITY, Finding, Plot, Report, ReportRow, Tables

_OFTEN: Final = 0.1
"""A fraction of the active minutes. An entity with more throttled minutes is worth a look."""


def _build(tables: Tables) -> DataFrame:
    return tables.totals.where(F.col("limited_minutes") > 0).select(
        *ENTITY,
        "quota",
        "limit",
        F.col("limited_minutes").alias("minutes"),
        F.col("limited_seconds").alias("active_seconds"),
        F.col("limited_amount").alias("used_amount"),
        ratio("limited_amount", "capacity").alias("mean_utilisation"),
        F.round("peak_utilisation", 4).alias("peak_utilisation"),
        "above_80_minutes",
        ratio("above_80_minutes", "limited_minutes").alias("above_80_fraction"),
        "above_100_minutes",
        ratio("above_100_minutes", "limited_minutes").alias("above_100_fraction"),
        "throttled_minutes",
        ratio("throttled_minutes", "limited_minutes").alias("throttled_fraction"),
    )


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    percent = [(kind_label(row), row["above_80_fraction"] * 100) for row in rows]
    return [bars(percent, "Time above 80 % of the quota", "% of active minutes")]


def _findings(rows: Sequence[ReportRow]) -> Sequence[Finding]:
    often = [row for row in rows if row["throttled_fraction"] > _OFTEN]
    rest = [row for row in rows if row["throttled_fraction"] <= _OFTEN]
    close = [row for row in rest if (row["mean_utilisation"] or 0.0) > NEARLY_FULL]
    found = []
    if often:
        most = max(often, key=lambda row: row["throttled_minutes"])
        found.append(
            Finding(
                f"{counted(len(often), 'entity was', 'entities were')} throttled in more than {_OFTEN * 100:g} % of the active"
                f" minutes, {named(most)} in {counted(most['throttled_minutes'], 'minute', 'minutes')}.",
                "Raise the limits of clients that need more. Ask the owners of the others to send less or more evenly.",
            )
        )
    if close:
        most = max(close, key=lambda row: row["mean_utilisation"])
        found.append(
            Finding(
                f"{counted(len(close), 'other entity', 'other entities')} used more than {NEARLY_FULL * 100:g} % of the quota"
                f" on average, {named(most)} {percent(most['mean_utilisation'])}.",
                "Raise these limits before growth leads to throttling, or agree with the owners on the present use.",
            )
        )
    return found


REPORT = Report(
    name="utilisation",
    order=2,
    title="Utilisation against quota",
    question="Which entities are near their limits, and which have far too much?",
    nothing="No client with a quota was active in this period.",
    sort=("-above_80_fraction", "-mean_utilisation", *ENTITY),
    columns={
        "minutes": "minutes with activity and a limit",
        "active_seconds": "the seconds of these minutes in which the entity used its quota or was throttled",
        "used_amount": "the use in these minutes",
        "mean_utilisation": "use / quota over these seconds; 1.0 is the quota",
        "peak_utilisation": "use / quota in the active seconds of the busiest minute",
        "above_80_minutes": "minutes at or above 80 % of the quota",
        "above_100_minutes": "minutes at or above the quota: a burst, or the quota was not enforced",
        "throttled_minutes": "minutes with a throttle decision",
    },
    build=_build,
    plots=_plots,
    findings=_findings,
)
