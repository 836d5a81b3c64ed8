"""What limit would have been right: which one would have throttled p % of an entity's minutes."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.reports.job.columns import ratio
from gateway.reports.job.histogram import quantiles
from gateway.reports.job.hours import entity_id
from gateway.reports.job.plots import label
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
    sized = quantiles(tables.table("rates"), ["entity_id"], _THOUSANDTHS)
    return sized.join(tables.totals.withColumn("entity_id", entity_id()), "entity_id").select(
        *ENTITY,
        F.col("count").alias("minutes"),
        F.col("limit").alias("limit_now"),
        "throttled_minutes",
        ratio("throttled_minutes", "count").alias("throttled_fraction"),
        *(F.round(F.col(name) / 60, 3).alias(name) for name in _THOUSANDTHS),
        (F.col("throttled_minutes") > 0).alias("held_back"),
    )


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    limited = [row for row in rows if row["limit_now"] is not None][:_SHOWN]
    names = [f"{row['kind']}: {label(row)}" for row in limited]
    series = {
        "limit now": "limit_now",
        "throttles 1 % of minutes": "limit_for_1_percent",
        "throttles 10 %": "limit_for_10_percent",
    }
    return (
        [
            {
                "data": [
                    {"type": "bar", "orientation": "h", "name": name, "y": names, "x": [row[column] for row in limited]}
                    for name, column in series.items()
                ],
                "layout": {
                    "title": {"text": "Limits, as they are and as use would have them"},
                    "xaxis": {"title": {"text": "units per second"}, "type": "log", "dtick": 1},
                    "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
                    "barmode": "group",
                    "height": 170 + 44 * max(3, len(limited)),
                },
            }
        ]
        if limited
        else []
    )


REPORT = Report(
    name="right_sizing",
    order=4,
    title="Quota right-sizing",
    question="What limit would have throttled p % of an entity's active minutes?",
    nothing="There are no usage samples in this period.",
    sort=("-throttled_fraction", *ENTITY),
    columns={
        "minutes": "minutes in which it was active",
        "limit_for_1_percent": "1 % of its minutes had a mean rate above it (units per second); at most 6.25 % too high",
        "limit_for_0_percent": "its busiest minute",
        "held_back": "it was throttled, so it wanted more than it used: the right limit is higher than these",
    },
    build=_build,
    plots=_plots,
)
