"""Groups: their use, and the parts of a shared capacity that they lent, borrowed and waited for."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.quotas.kinds import KINDS
from gateway.reports.job.columns import count
from gateway.reports.job.group_hours import SHORT_SECONDS
from gateway.reports.job.phrases import counted, rate
from gateway.reports.job.plots import lines, named
from gateway.reports.report import Finding, Plot, Report, ReportRow, Tables
from gateway.reports.top_throttled import AMOUNTS

_LINES: Final = 8
"""The maximum number of groups in a plot."""
_OFTEN: Final = 0.5
"""A group that borrows in a larger part of its minutes depends on others."""


def _build(tables: Tables) -> DataFrame:
    seconds = F.col("minutes") * 60
    return (
        tables.table("groups")
        .where(F.col("kind").isin(list(KINDS)))
        .select(
            "date",
            "hour",
            "kind",
            "group",
            "parent",
            F.coalesce("amount", F.lit(0.0)).alias("used_amount"),
            F.round(F.try_divide("guaranteed", seconds), 3).alias("guarantee"),
            F.round(F.try_divide("entitled", seconds), 3).alias("entitlement"),
            F.round("lent", 3).alias("lent_amount"),
            F.round("borrowed", 3).alias("borrowed_amount"),
            "borrowed_minutes",
            "waited_seconds",
            "short_minutes",
            count("throttled").alias("throttled"),
            count("throttle_ms").alias("throttle_ms"),
        )
    )


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    plots = []
    for kind in sorted({row["kind"] for row in rows}):
        used: dict[str, dict[str, float]] = {}
        for row in rows:
            if row["kind"] == kind:
                used.setdefault(row["group"], {})[f"{row['date']} {row['hour']:02d}:00"] = row["used_amount"] / 3600
        largest = sorted(used, key=lambda group: -sum(used[group].values()))[:_LINES]
        series = {group: (sorted(used[group]), [used[group][at] for at in sorted(used[group])]) for group in largest}
        plots.append(lines(f"Mean use of groups by hour: {kind}", KINDS[kind].limit_unit, series))
    return plots


def _findings(rows: Sequence[ReportRow]) -> Sequence[Finding]:
    found = []
    short = [row for row in rows if row["short_minutes"]]
    if short:
        worst = max(short, key=lambda row: row["short_minutes"])
        found.append(
            Finding(
                f"{_groups(short)} waited without getting the guarantee; {named(worst)} in"
                f" {counted(worst['short_minutes'], 'minute', 'minutes')} of an hour.",
                "Check that the gateways read each other's messages, if they share. Then try smaller requests: they wait for a"
                " shorter time.",
            )
        )
    borrowers = [row for row in rows if row["borrowed_minutes"] > _OFTEN * 60]
    if borrowers:
        most = max(borrowers, key=lambda row: row["borrowed_amount"])
        found.append(
            Finding(
                f"{_groups(borrowers)} borrowed in most minutes of an hour; {named(most)} used"
                f" {rate(most['borrowed_amount'] / 3600, most['kind'])} above its entitlement.",
                "Raise its guarantee or weight if it depends on this use: the lenders take it back at any time.",
            )
        )
    return found


def _groups(rows: Sequence[ReportRow]) -> str:
    return counted(len({(row["kind"], row["group"]) for row in rows}), "group", "groups")


REPORT = Report(
    name="groups",
    order=13,
    title="Groups",
    question="How much did each group use, lend, borrow and wait, hour by hour?",
    nothing="No group was used in this period.",
    sort=("-date", "-hour", "kind", "group"),
    columns={
        "parent": "the group above; empty for the group with the capacity, and for a group that shares none",
        "used_amount": f"{AMOUNTS}. A group has the use of all groups below it, so add up groups of one level only",
        "guarantee": "mean over the minutes with samples; 0 for none",
        "entitlement": "the part of the capacity that the group may use while all others want more; mean over the same minutes",
        "lent_amount": "of each minute, the unused entitlement that groups with the same parent borrowed. It is unused x min(1,"
        " all that they borrowed / all that they left unused)",
        "borrowed_amount": "of each minute, the use above the entitlement: max(0, use - entitlement x 60 s). The groups with"
        " the same parent lent it, and their parent borrowed the rest",
        "borrowed_minutes": "minutes with use above the entitlement",
        "waited_seconds": "seconds in which clients waited for the group; empty if it shares no capacity",
        "short_minutes": f"minutes in which clients waited {SHORT_SECONDS} s or more, and the group used less than its"
        " guarantee x these seconds",
        "throttle_ms": "throttle times by the group, of all requests together",
    },
    build=_build,
    plots=_plots,
    findings=_findings,
)
