"""Who was throttled most, since when, by which quota."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.quotas.kinds import UNITS
from gateway.reports.job.columns import count, moment, ratio
from gateway.reports.job.plots import bars, label
from gateway.reports.report import ENTITY, Plot, Report, ReportRow, Tables

*_FIRST_UNITS, _LAST_UNIT = (unit.name for unit in UNITS)
AMOUNTS = f"{', '.join(_FIRST_UNITS)} or {_LAST_UNIT}"


def _build(tables: Tables) -> DataFrame:
    held = tables.totals.where((F.col("throttled") > 0) | (F.col("noted") > 0))
    everyone = held.agg(F.sum("throttle_ms").alias("all_ms"))
    return held.crossJoin(F.broadcast(everyone)).select(
        *ENTITY,
        "quota",
        "limit",
        count("throttled").alias("throttled"),
        count("throttle_ms").alias("throttle_ms"),
        count("throttle_max_ms").alias("throttle_max_ms"),
        ratio("throttle_ms", "all_ms").alias("share"),
        "throttled_minutes",
        count("noted").alias("noted"),
        count("noted_ms").alias("noted_ms"),
        F.col("throttled_amount").alias("amount"),
        F.col("throttle_rate").alias("peak_rate"),
        moment("first_ms").alias("since"),
        moment("last_ms").alias("until"),
        F.col("worst.address").alias("address"),
        F.col("worst.broker").alias("broker"),
        F.col("worst.api").alias("api"),
    )


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    return [
        bars(
            rows,
            "Throttle time by entity",
            "seconds",
            lambda row: (row["throttle_ms"] + row["noted_ms"]) / 1000,
            lambda row: f"{row['kind']}: {label(row)}",
        )
    ]


REPORT = Report(
    name="top_throttled",
    order=0,
    title="Top throttled entities",
    question="Who was held back most, by which quota, and since when?",
    nothing="Nobody was throttled in this period.",
    sort=("-throttle_ms", "-noted_ms", *ENTITY),
    columns={
        "quota": "the configured entity whose limit applied last",
        "limit": f"units per second: {AMOUNTS}",
        "throttled": "decisions to throttle",
        "throttle_ms": "throttle time of all its connections, summed up",
        "share": "of everybody's throttle time",
        "throttled_minutes": "minutes in which it was throttled",
        "noted": "decisions that were only noted: quotas.enforce was false",
        "noted_ms": "the throttle time that it would have got",
        "amount": f"{AMOUNTS} of the throttled requests",
        "peak_rate": "the highest rate at a throttle, units per second",
        "address": "of the client that had to wait longest; likewise broker and api",
    },
    build=_build,
    plots=_plots,
)
