"""Changes of the configuration and of quotas, with throttling and use in the hour before and after each."""

import datetime as dt
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from gateway.events import AT_BROKER
from gateway.reports.job.columns import count, minute_since_1970, moment
from gateway.reports.job.first_pass import id_of
from gateway.reports.job.hours import ENTITY_MINUTES
from gateway.reports.job.period import Hour
from gateway.reports.job.phrases import counted, duration
from gateway.reports.job.plots import grouped_bars
from gateway.reports.report import Finding, Plot, Report, ReportRow, Tables
from gateway.reports.top_throttled import AMOUNTS

WINDOW_MINUTES = 60
"""The report compares this many minutes before a change with as many after it."""

SAME_MINUTES = 5
"""Reports of one change by several gateways are at most this far apart."""

_EPOCH = dt.date(1970, 1, 1)
_PARTS = ("user", "client_id", "ip", "group")
_MEASURES = ("throttled", "throttle_ms", "amount")


def _build(tables: Tables) -> DataFrame:
    changes = _changes(tables).cache()
    hours = _hours_around(changes)
    effects = _config_effects(changes, tables, hours).unionByName(_quota_effects(changes, tables, hours))
    sides = {"before": F.col("distance") < 0, "after": F.col("distance") > 0}
    measured = effects.groupBy("change").agg(
        *(F.count_distinct(F.when(side, F.col("distance"))).alias(f"{name}_minutes") for name, side in sides.items()),
        *(
            F.sum(F.when(side, F.col(measure))).alias(f"{name}_{measure}")
            for name, side in sides.items()
            for measure in _MEASURES
        ),
    )
    counts = [f"{name}_{each}" for name in sides for each in ("minutes", "throttled", "throttle_ms")]
    amounts = [f"{name}_amount" for name in sides]
    return changes.join(measured, "change", "left").select(
        moment("time_ms").alias("time"),
        F.col("type").alias("what"),
        "gateways",
        "quota",
        "kind",
        "old_limit",
        "new_limit",
        "source",
        "principal",
        "result",
        "config_version",
        F.array_join("changes", "; ").alias("changes"),
        *(count(name).alias(name) for name in counts),
        *(F.coalesce(name, F.lit(0.0)).alias(name) for name in amounts),
    )


def _changes(tables: Tables) -> DataFrame:
    """One row for each change. `at` is the minute of the first gateway's report since 1970, `last` that of the last one.

    Gateways notice a changed file at different times. A run of equal reports ends if none follows for `SAME_MINUTES`. In a
    run, the first reports of all gateways are of one change, so are their second reports, and so on.
    """
    same = (
        "type", "kind", "quota", *_PARTS, "old_limit", "new_limit", "source", "principal", "result", "changes",
    )  # fmt: skip
    in_order = Window.partitionBy(*same).orderBy("time_ms", "gateway")
    since = F.col("time_ms") - F.lag("time_ms").over(in_order)
    return (
        tables.table("changes")
        .where(F.col("type").isin("config", "quota_change", "grant_expired"))
        .withColumn("begins", F.coalesce(since > SAME_MINUTES * 60_000, F.lit(True)).cast("int"))
        .withColumn("run", F.sum("begins").over(in_order))
        .withColumn("nth", F.row_number().over(Window.partitionBy(*same, "run", "gateway").orderBy("time_ms")))
        .groupBy(*same, "run", "nth")
        .agg(
            F.min("time_ms").alias("time_ms"),
            *(F.floor(of("time_ms") / 60_000).alias(name) for name, of in (("at", F.min), ("last", F.max))),
            F.count_distinct("gateway").alias("gateways"),
            F.nullif(F.array_join(F.array_sort(F.collect_set("config_version")), ", "), F.lit("")).alias("config_version"),
        )
        .withColumn("change", id_of((*same, "time_ms", "nth")))
    )


def _hours_around(changes: DataFrame) -> Sequence[Hour]:
    """The hours that the windows of the changes overlap."""
    found = changes.select("at", "last").distinct().collect()
    hours = {hour for row in found for hour in range(row.at // 60 - 1, row.last // 60 + 2)}
    return [(_EPOCH + dt.timedelta(days=hour // 24), hour % 24) for hour in sorted(hours)]


def _in_windows(minutes: DataFrame, changes: DataFrame, applied: Column) -> DataFrame:
    """The measures of the minutes within the window of each change to which a minute is `applied`."""
    before, after = minute_since_1970() - F.col("at"), minute_since_1970() - F.col("last")
    distance = F.when(before.between(-WINDOW_MINUTES, -1), before).when(after.between(1, WINDOW_MINUTES), after)
    return (
        minutes.join(F.broadcast(changes), applied)
        .withColumn("distance", distance)
        .where(F.col("distance").isNotNull())
        .select("change", "distance", *_MEASURES)
    )


def _config_effects(changes: DataFrame, tables: Tables, hours: Sequence[Hour]) -> DataFrame:
    """For a config file: the minutes of all kinds and entities."""
    configs = changes.where(F.col("type") == "config").select("change", "at", "last")
    return _in_windows(tables.table("minutes", hours), configs, F.lit(True))


def _quota_effects(changes: DataFrame, tables: Tables, hours: Sequence[Hour]) -> DataFrame:
    """For a quota: the minutes of the entities that it applied to, and of the entity that it names."""
    quotas = changes.where(F.col("type") == "quota_change").select(
        "change", "at", "last", *(F.col(name).alias(f"of_{name}") for name in ("kind", "quota", *_PARTS))
    )
    named = reduce(Column.__and__, (F.col(part).eqNullSafe(F.col(f"of_{part}")) for part in _PARTS))
    entity = F.split("quota", AT_BROKER)[0]
    applied = (F.col("kind") == F.col("of_kind")) & ((entity == F.col("of_quota")) | named)
    buckets = tables.names.join(F.broadcast(quotas), applied).select("change", "at", "last", F.col("bucket").alias("of_bucket"))
    minutes = tables.table(ENTITY_MINUTES, hours).where(F.col("minute").isNotNull())
    return _in_windows(minutes, buckets, F.col("bucket") == F.col("of_bucket"))


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    shown = [row for row in rows if row["before_throttle_ms"] or row["after_throttle_ms"]][:20]
    if not shown:
        return []
    names = [f"{row['time']:%m-%d %H:%M} {_changed(row)}"[:60] for row in shown]
    sides = {"hour before": "before_throttle_ms", "hour after": "after_throttle_ms"}
    series = {name: [row[column] / 1000 for row in shown] for name, column in sides.items()}
    return [grouped_bars(names, "Throttle time before and after", "seconds", series)]


def _changed(row: ReportRow) -> str:
    what = str(row["quota"] or row["changes"] or "config")
    return f"{row['kind']}: {what}" if row["kind"] else what


def _findings(rows: Sequence[ReportRow]) -> Sequence[Finding]:
    def growth(row: ReportRow) -> float:
        return float(row["after_throttle_ms"] - row["before_throttle_ms"]) / 1000

    worse = [row for row in rows if growth(row) > 0]
    if not worse:
        return []
    worst = max(worse, key=growth)
    return [
        Finding(
            f"More throttle time followed {len(worse):,} of {counted(len(rows), 'change', 'changes')}:"
            f" {duration(growth(worst))} more in the hour after {worst['time']:%Y-%m-%d %H:%M} ({worst['quota'] or 'config'}).",
            "If nobody intended this, take the change back; the table has its source and its principal.",
        )
    ]


REPORT = Report(
    name="config_changes",
    order=9,
    title="Changes and their effect",
    question="Which quotas and settings were changed, and how did throttling and use change after that?",
    nothing="No quota and no configuration was changed in this period.",
    sort=("time", "what", "quota", "kind"),
    columns={
        "what": "config: a config file was applied or refused; quota_change: one limit of one entity was changed;"
        " grant_expired: the `until` of an entity's row passed",
        "gateways": "the number of gateways that reported the change, the first one at this time",
        "config_version": "of each gateway, counted from its start",
        "old_limit": "units per second, empty if there was no limit; new_limit likewise",
        "before_minutes": "minutes with events in the 60 minutes before the change; after_minutes likewise",
        "before_throttled": "throttle decisions in these minutes; for a quota, only for the entities that it applied to",
        "before_amount": f"{AMOUNTS} used in these minutes",
    },
    build=_build,
    plots=_plots,
    findings=_findings,
)
