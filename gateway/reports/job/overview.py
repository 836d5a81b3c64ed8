"""The overview at the top of the page: the period's sums, and throttling over time."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import functions as F

from gateway.quotas.kinds import UNITS
from gateway.reports.job.phrases import duration
from gateway.reports.job.plots import lines
from gateway.reports.report import ENTITY, Plot, ReportRow, Tables

_BY_MINUTE = 6
"""A period of up to this many hours has one point for each minute; a longer one has one for each hour."""


@dataclass(frozen=True)
class Overview:
    """`tiles` are pairs of name and value; `plots` cover the whole period."""

    tiles: Sequence[tuple[str, str]]
    plots: Sequence[Plot]


def overview(tables: Tables, hours: int) -> Overview:
    """The period's sums, and each kind over time. `hours` is the number of hours with events."""
    sums = tables.totals.agg(
        F.sum("throttled").alias("throttled"),
        F.sum("throttle_ms").alias("throttle_ms"),
        F.sum("noted").alias("noted"),
        F.count_distinct(F.when((F.col("throttled") > 0) | (F.col("noted") > 0), F.struct(*ENTITY[1:]))).alias("entities"),
        F.sum("early_count").alias("early"),
    ).first()
    values = {name: (sums[name] or 0) if sums else 0 for name in ("throttled", "throttle_ms", "noted", "entities", "early")}
    tiles = [
        ("entities throttled", f"{values['entities']:,}"),
        ("throttle decisions", f"{values['throttled']:,}"),
        ("throttle time", duration(values["throttle_ms"] / 1000)),
        ("requests sent too early", f"{values['early']:,}"),
    ]
    if values["noted"]:
        tiles.insert(2, ("decisions not enforced", f"{values['noted']:,}"))
    return Overview(tiles, _plots(tables, hours))


def _plots(tables: Tables, hours: int) -> Sequence[Plot]:
    grain = ("date", "hour", "minute") if hours <= _BY_MINUTE else ("date", "hour")
    rows = [
        row.asDict()
        for row in tables.minutes.groupBy(*grain, "kind")
        .agg(
            (F.coalesce(F.sum("throttle_ms"), F.lit(0)) + F.coalesce(F.sum("noted_ms"), F.lit(0))).alias("delay_ms"),
            F.max("throttled_entities").alias("entities"),
            F.sum("amount").alias("amount"),
            F.sum("seconds").alias("seconds"),
        )
        .orderBy("kind", *grain)
        .collect()
    ]
    every = "minute" if "minute" in grain else "hour"
    throttled = [kind for kind in _kinds(rows) if any(row["delay_ms"] for row in rows if row["kind"] == kind)]
    plots = []
    if throttled:
        delays = {kind: _series(rows, kind, "delay_ms", 1000) for kind in throttled}
        entities = {kind: _series(rows, kind, "entities") for kind in throttled}
        plots = [
            lines(f"Throttle time each {every}", "seconds", delays),
            lines(f"Entities throttled in one minute, maximum of each {every}", "entities", entities),
        ]
    return [*plots, *use_plots(rows)]


def use_plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    """A plot for each unit of the kinds that are shown in overviews: the use per active second."""
    found = _kinds(rows)
    plots = []
    for unit, kinds in UNITS.items():
        shown = [kind.name for kind in kinds if kind.in_overview and kind.name in found]
        if shown:
            series = {name: _series([_per_second(row) for row in rows], name, "rate") for name in shown}
            plots.append(lines("Use in the active seconds", f"{unit.name} per second", series))
    return plots


def _per_second(row: ReportRow) -> ReportRow:
    return {**row, "rate": (row["amount"] or 0) / row["seconds"] if row["seconds"] else 0}


def _kinds(rows: Sequence[ReportRow]) -> Sequence[str]:
    return sorted({row["kind"] for row in rows})


def _series(rows: Sequence[ReportRow], kind: str, column: str, unit: float = 1) -> tuple[Sequence[str], Sequence[float]]:
    of_kind = [row for row in rows if row["kind"] == kind]
    x = [f"{row['date']} {row['hour']:02d}:{row.get('minute', 0):02d}" for row in of_kind]
    return x, [(row[column] or 0) / unit for row in of_kind]
