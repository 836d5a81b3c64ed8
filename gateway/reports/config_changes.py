"""Changes of the configuration and of quotas, with throttling and use in the hour before and after each."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gateway.reports.job.columns import count, moment
from gateway.reports.job.hours import ENTITY_MINUTES
from gateway.reports.job.plots import grouped_bars
from gateway.reports.report import Plot, Report, ReportRow, Tables
from gateway.reports.top_throttled import AMOUNTS

WINDOW_MINUTES = 60
"""The report compares this many minutes before a change with as many after it."""

_MEASURES = ("throttled", "throttle_ms", "amount")


def _build(tables: Tables) -> DataFrame:
    changes = _changes(tables).cache()
    effects = _config_effects(changes, tables).unionByName(_quota_effects(changes, tables))
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
    """One row for each change, even if several gateways report it. `at` is its minute since 1970."""
    same = (
        "type", "kind", "quota", "user", "client_id", "ip", "old_limit", "new_limit", "source", "principal", "result",
        "config_version", "changes",
    )  # fmt: skip
    at = F.floor(F.col("time_ms") / 60_000)
    return (
        tables.table("changes")
        .where(F.col("type").isin("config", "quota_change"))
        .groupBy(*same, at.alias("at"))
        .agg(F.min("time_ms").alias("time_ms"), F.count_distinct("gateway").alias("gateways"))
        .withColumn("change", F.xxhash64(*same, "at"))
    )


def _hours_around(changes: DataFrame) -> DataFrame:
    """The change, once for each hour that its window overlaps."""
    hour = F.floor(F.col("at") / 60)
    hours = changes.withColumn("at_hour", F.explode(F.array(hour - 1, hour, hour + 1)))
    return hours.withColumns(
        {
            "at_date": F.date_from_unix_date(F.floor(F.col("at_hour") / 24).cast("int")),
            "of_day": (F.col("at_hour") % 24).cast("int"),
        }
    )


def _in_window(hour: Column, minute: Column) -> Column:
    distance = hour * 60 + minute - F.col("at")
    return F.when((distance != 0) & (F.abs(distance) <= WINDOW_MINUTES), distance)


def _config_effects(changes: DataFrame, tables: Tables) -> DataFrame:
    """For a config file: the minutes of all kinds and entities."""
    around = _hours_around(changes.where(F.col("type") == "config").select("change", "at"))
    return (
        tables.minutes.join(F.broadcast(around), _same_hour(tables.minutes))
        .withColumn("distance", _in_window(F.col("at_hour"), F.col("minute")))
        .where(F.col("distance").isNotNull())
        .select("change", "distance", *_MEASURES)
    )


def _quota_effects(changes: DataFrame, tables: Tables) -> DataFrame:
    """For a quota: the minutes of the entities that it applied to, and of the entity that it names."""
    quotas = changes.where(F.col("type") == "quota_change").select("change", "at", "kind", "quota", "user", "client_id", "ip")
    around = _hours_around(quotas)
    renamed = around.select(
        "change", "at", "at_hour", "at_date", "of_day",
        *(F.col(name).alias(f"of_{name}") for name in ("kind", "quota", "user", "client_id", "ip")),
    )  # fmt: skip
    named = F.lit(True)
    for part in ("user", "client_id", "ip"):
        named &= F.col(part).eqNullSafe(F.col(f"of_{part}"))
    applied = (F.col("kind") == F.col("of_kind")) & ((F.col("quota") == F.col("of_quota")) | named)
    minutes = tables.table(ENTITY_MINUTES)
    return (
        minutes.join(F.broadcast(renamed), _same_hour(minutes) & applied)
        .withColumn("distance", _in_window(F.col("at_hour"), F.col("minute")))
        .where(F.col("distance").isNotNull())
        .select("change", "distance", *_MEASURES)
    )


def _same_hour(table: DataFrame) -> Column:
    return (table["date"] == F.col("at_date")) & (table["hour"] == F.col("of_day"))


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    shown = [row for row in rows if row["before_throttle_ms"] or row["after_throttle_ms"]][:20]
    if not shown:
        return []
    names = [f"{row['time']:%m-%d %H:%M} {row['quota'] or row['changes'] or 'config'}"[:60] for row in shown]
    sides = {"hour before": "before_throttle_ms", "hour after": "after_throttle_ms"}
    series = {name: [row[column] / 1000 for row in shown] for name, column in sides.items()}
    return [grouped_bars(names, "Throttle time before and after", "seconds", series)]


REPORT = Report(
    name="config_changes",
    order=9,
    title="Changes and their effect",
    question="Which quotas and settings were changed, and how did throttling and use change after that?",
    nothing="No quota and no configuration was changed in this period.",
    sort=("time", "what", "quota", "kind"),
    columns={
        "what": "config: a config file was applied or refused; quota_change: one limit of one entity was changed",
        "gateways": "the number of gateways that reported the change",
        "old_limit": "units per second, empty if there was no limit; new_limit likewise",
        "before_minutes": "minutes with events in the 60 minutes before the change; after_minutes likewise",
        "before_throttled": "throttle decisions in these minutes; for a quota, only for the entities that it applied to",
        "before_amount": f"{AMOUNTS} used in these minutes",
    },
    build=_build,
    plots=_plots,
)
