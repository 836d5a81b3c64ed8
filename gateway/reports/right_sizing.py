"""The limits that would have throttled a given part of each entity's minutes without throttles.

The use of a throttled minute does not show the demand, so these minutes are left out, and their demand is estimated.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.reports.job.columns import quantiles, ratio
from gateway.reports.job.phrases import counted, rate
from gateway.reports.job.plots import grouped_bars, kind_label, named
from gateway.reports.report import ENTITY, Finding, Plot, Report, ReportRow, Tables

_THOUSANDTHS: Final = {
    "limit_for_0_percent": 1000,
    "limit_for_1_percent": 990,
    "limit_for_5_percent": 950,
    "limit_for_10_percent": 900,
    "limit_for_25_percent": 750,
}
_SHOWN: Final = 12
_TOO_SMALL: Final = 1.1
"""A limit is too small if the estimated demand exceeds this multiple of it."""
_TOO_LARGE: Final = 10.0
"""A limit above this multiple of the busiest minute is too large."""


def _build(tables: Tables) -> DataFrame:
    sized = quantiles(tables.rates, ["entity"], _THOUSANDTHS)
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


def _findings(rows: Sequence[ReportRow]) -> Sequence[Finding]:
    limited = [row for row in rows if row["limit_now"]]
    small = [row for row in limited if (row["demand_estimate"] or 0.0) > row["limit_now"] * _TOO_SMALL]
    calm = [row for row in limited if row["limit_for_0_percent"] and not row["throttled_minutes"]]
    large = [row for row in calm if row["limit_now"] > row["limit_for_0_percent"] * _TOO_LARGE]
    free = [row for row in rows if row["limit_now"] is None]
    found = []
    if small:
        most = max(small, key=lambda row: row["demand_estimate"] / row["limit_now"])
        demand = rate(most["demand_estimate"], most["kind"])
        found.append(
            Finding(
                f"{counted(len(small), 'entity has', 'entities have')} an estimated demand above {_TOO_SMALL:g} times the"
                f" limit: {named(most)}, {demand} for {rate(most['limit_now'], most['kind'])}.",
                "Choose a limit between these two rates, as the brokers allow; the estimate is an upper bound.",
            )
        )
    if large:
        found.append(
            Finding(
                f"{counted(len(large), 'entity has', 'entities have')} a limit of more than {_TOO_LARGE:g} times the busiest"
                " minute.",
                "Lower these limits to the limit that throttles no minute, so that they still protect the brokers.",
            )
        )
    if free:
        found.append(
            Finding(
                f"{counted(len(free), 'entity has', 'entities have')} no limit.",
                "Set a default quota for users or client-ids; the columns of the table show limits that fit.",
            )
        )
    return found


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
    findings=_findings,
    many_rows=True,
)
