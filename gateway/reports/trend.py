"""Bytes of each owner in a month, beside the month before."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from gateway.quotas.kinds import BYTES
from gateway.reports.chargeback import OF_GROUPS, PERCENTILE, RATES, owner_label, sums
from gateway.reports.job.columns import ratio
from gateway.reports.job.owners import OWNER, rates_of_month, summed_months
from gateway.reports.job.phrases import counted, percent
from gateway.reports.job.plots import BARS, grouped_bars
from gateway.reports.report import Finding, Plot, Report, ReportRow, Tables

_FIGURES: Final = {
    "used_bytes": "before_bytes",
    "group_bytes": "before_group_bytes",
    "peak_rate": "peak_rate_before",
    "rate_95": "rate_95_before",
}
"""The columns of a month, and those of the month before."""


def _build(tables: Tables) -> DataFrame:
    this_month = F.trunc("date", "month").alias("month")
    by_month = summed_months(tables.owner_months).select("month", *OWNER, *sums(), *rates_of_month())
    month_before = Window.orderBy(F.year("month") * 12 + F.month("month")).rangeBetween(-1, -1)
    days = tables.minutes.groupBy(this_month).agg(F.count_distinct("date").alias("days"))
    days = F.broadcast(days.withColumn("days_before", F.max("days").over(month_before)))
    following = F.add_months("month", 1).alias("month")
    # Each row serves two months, so an owner without use in one of them has a row as well.
    now = F.struct("month", *_FIGURES, *(F.lit(None).cast("long").alias(before) for before in _FIGURES.values()))
    later = F.struct(
        following,
        *(F.lit(None).cast("long").alias(name) for name in _FIGURES),
        *(F.col(name).alias(before) for name, before in _FIGURES.items()),
    )
    beside = by_month.select(*OWNER, F.inline(F.array(now, later))).groupBy("month", *OWNER)
    of_group = F.col("owner_type").isin(*OF_GROUPS)
    # No use, and no ledger, are different things.
    known = F.col("days_before").isNotNull()
    counted = {
        "used_bytes": ~of_group,
        "group_bytes": of_group,
        "before_bytes": ~of_group & known,
        "before_group_bytes": of_group & known,
    }
    counts = {name: F.when(here, F.coalesce(name, F.lit(0))) for name, here in counted.items()}
    total, total_before = (
        F.coalesce(*names) for names in (("used_bytes", "group_bytes"), ("before_bytes", "before_group_bytes"))
    )
    return (
        beside.agg(*(F.max(name).alias(name) for pair in _FIGURES.items() for name in pair))
        .join(days, "month")
        .withColumns(counts)
        .withColumn("change_fraction", ratio(total - total_before, total_before))
    )


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    last = max(row["month"] for row in rows)
    largest = [row for row in rows if row["month"] == last and row["owner_type"] not in OF_GROUPS][:BARS]
    names = [owner_label(row) for row in largest]
    series = {"month before": "before_bytes", f"{last:%Y-%m}": "used_bytes"}
    amounts = {name: [row[column] or 0 for row in largest] for name, column in series.items()}
    return [grouped_bars(names, "Bytes by owner and month", BYTES.name, amounts)]


_MUCH: Final = 0.5
"""Growth of an owner's bytes that is worth a look."""


def _findings(rows: Sequence[ReportRow]) -> Sequence[Finding]:
    owners = [row for row in rows if row["owner_type"] not in OF_GROUPS]
    last = max((row["month"] for row in owners if row["used_bytes"]), default=None)
    grown = [row for row in owners if row["month"] == last and (row["change_fraction"] or 0.0) > _MUCH]
    if not grown:
        return []
    most = max(grown, key=lambda row: row["used_bytes"] - row["before_bytes"])
    return [
        Finding(
            f"{counted(len(grown), 'owner', 'owners')} grew by more than {_MUCH * 100:g} % in {last:%Y-%m}:"
            f" {owner_label(most)} by {percent(most['change_fraction'])} to {BYTES.text(most['used_bytes'])}.",
            "Compare the days with use in both months first; then plan brokers and quotas for the growth.",
        )
    ]


REPORT = Report(
    name="trend",
    order=11,
    title="Trend by month",
    question="How much more or less than in the month before did each owner use?",
    nothing="No client produced or fetched records in this period.",
    sort=("-month", "-used_bytes", "-group_bytes", *OWNER),
    columns={
        "month": "the first day of the month",
        "owner_type": "user, client-id, unowned, group, parent group or no group, as in chargeback",
        "used_bytes": "bytes of requests and responses with records",
        "before_bytes": "bytes in the month before; empty if the ledger has no hour of that month",
        "group_bytes": "the same bytes by group, as in chargeback",
        "change_fraction": "growth over the month before: 0.1 is 10 % more",
        "peak_rate": RATES,
        "rate_95": PERCENTILE,
        "days": "days of the month with use; compare only months with as many days",
    },
    build=_build,
    plots=_plots,
    findings=_findings,
    unit=BYTES,
)
