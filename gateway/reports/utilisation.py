"""How much of its quota each entity used."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.reports.job.columns import ratio
from gateway.reports.job.plots import bars, label
from gateway.reports.report import ENTITY, Plot, Report, ReportRow, Tables


def _build(tables: Tables) -> DataFrame:
    return tables.totals.where(F.col("limited_minutes") > 0).select(
        *ENTITY,
        "quota",
        "limit",
        F.col("limited_minutes").alias("minutes"),
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
    return [
        bars(
            rows,
            "Time above 80 % of the quota",
            "% of active minutes",
            lambda row: row["above_80_fraction"] * 100,
            lambda row: f"{row['kind']}: {label(row)}",
        )
    ]


REPORT = Report(
    name="utilisation",
    order=2,
    title="Utilisation against quota",
    question="Who lives near its limit, and who has far too much?",
    nothing="No client with a quota was active in this period.",
    sort=("-above_80_fraction", "-mean_utilisation", *ENTITY),
    columns={
        "minutes": "minutes in which it was active and had a limit",
        "mean_utilisation": "what it used of what those minutes allowed; 1.0 is the quota",
        "peak_utilisation": "in its busiest minute",
        "above_80_minutes": "minutes at or above 80 % of the quota",
        "above_100_minutes": "minutes at or above the quota: a burst, or not enforced",
        "throttled_minutes": "minutes in which it was throttled",
    },
    build=_build,
    plots=_plots,
)
