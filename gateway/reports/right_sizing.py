"""The limits that would have throttled a given part of each entity's minutes without throttles.

The use of a throttled minute does not show the demand, so these minutes are left out, and their demand is estimated.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.reports.job.columns import quantiles, ratio
from gateway.reports.job.plots import grouped_bars, kind_label
from gateway.reports.report import ENTITY, Plot, Report, ReportRow, Tables

_THOUSANDTHS: Final = {
    "limit_for_0_percent": 1000,
    "limit_for_1_percent": 990,
    "limit_for_5_percent": 950,
    "limit_for_10_percent": 900,
    "limit_for_25_percent": 750,
}
_SHOWN: Final = 12


def _build(tables: Tables) -> DataFrame:
    sized = quantiles(tables.table("rates"), ["entity"], _THOUSANDTHS)
    used = tables.totals.where(F.col("peak_minute") > 0)
    minutes = F.coalesce("count", F.lit(0))
    return used.join(sized, "entity", "left").select(
        *ENTITY,
        minutes.alias("minutes"),
        F.col("limit").alias("limit_now"),
        "throttled_minutes",
        ratio("throttled_minutes", minutes + F.col("throttled_minutes")).alias("throttled_fraction"),
        *(F.round(F.col(name) / 60, 3).alias(name) for name in _THOUSANDTHS),
        F.round(F.try_divide("demand_amount", "demand_seconds"), 3).alias("demand_estimate"),
    )


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    limited = [row for row in rows if row["limit_now"] is not None][:_SHOWN]
    names = [kind_label(row) for row in limited]
    series = {
        "current limit": "limit_now",
        "throttles 1 % of minutes": "limit_for_1_percent",
        "throttles 10 %": "limit_for_10_percent",
    }
    amounts = {name: [row[column] for row in limited] for name, column in series.items()}
    title = "Current limits and limits that fit the use"
    return [grouped_bars(names, title, "units per second", amounts, log=True)] if limited else []


REPORT = Report(
    name="right_sizing",
    order=4,
    title="Quota right-sizing",
    question="Which limit would have throttled a given percentage of an entity's minutes?",
    nothing="There are no usage samples in this period.",
    sort=("-throttled_fraction", *ENTITY),
    columns={
        "minutes": "minutes with use and without throttles; the limits come from these",
        "throttled_minutes": "minutes with throttles, left out: the use of a throttled client does not show its demand",
        "limit_for_1_percent": "1 % of the minutes had a higher mean rate over the active seconds; at most 6.25 % too high",
        "limit_for_0_percent": "the mean rate of the busiest of these minutes",
        "demand_estimate": "use of the throttled minutes / their active seconds without throttle time. It is too high if"
        " connections waited at the same time: up to ten times the use",
    },
    build=_build,
    plots=_plots,
)
