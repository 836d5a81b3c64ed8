"""The entities with the most throttle time, their quotas, and the time of the first throttle."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.quotas.kinds import UNITS
from gateway.reports.job.columns import count, moment, ratio
from gateway.reports.job.phrases import counted, duration, percent
from gateway.reports.job.plots import bars, kind_label, named
from gateway.reports.report import ENTITY, Finding, Plot, Report, ReportRow, Tables

*_FIRST_UNITS, _LAST_UNIT = (unit.name for unit in UNITS)
AMOUNTS = f"{', '.join(_FIRST_UNITS)} or {_LAST_UNIT}"


def _build(tables: Tables) -> DataFrame:
    throttled = tables.totals.where((F.col("throttled") > 0) | (F.col("noted") > 0))
    everyone = throttled.agg(F.sum("throttle_ms").alias("all_ms"))
    return throttled.crossJoin(F.broadcast(everyone)).select(
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
    seconds = [(kind_label(row), (row["throttle_ms"] + row["noted_ms"]) / 1000) for row in rows]
    return [bars(seconds, "Throttle time by entity", "seconds")]


def _findings(rows: Sequence[ReportRow]) -> Sequence[Finding]:
    held, noted = ([row for row in rows if row[count]] for count in ("throttled", "noted"))
    found = []
    if held:
        entities = counted(len(held), "entity was", "entities were")
        time = duration(sum(row["throttle_ms"] for row in held) / 1000)
        found.append(
            Finding(
                f"{entities} throttled for {time} in total; {named(held[0])} has {percent(held[0]['share'])} of this time.",
                "Compare its limit with the limits under Quota right-sizing. Raise the limit, or make the client send less.",
            )
        )
    if noted:
        entities = counted(len(noted), "entity", "entities")
        time = duration(sum(row["noted_ms"] for row in noted) / 1000)
        found.append(
            Finding(
                f"Weir would have throttled {entities} for {time}, but did not enforce the quotas.",
                "Talk to the owners of these clients before you set quotas.enforce to true.",
            )
        )
    return found


REPORT = Report(
    name="top_throttled",
    order=0,
    title="Top throttled entities",
    question="Which entities were throttled most, by which quota, and since when?",
    nothing="No client was throttled in this period.",
    sort=("-throttle_ms", "-noted_ms", *ENTITY),
    columns={
        "quota": "the configured entity with the limit that applied last",
        "limit": f"units per second: {AMOUNTS}",
        "throttled": "throttle decisions",
        "throttle_ms": "the sum of the throttle times of all connections",
        "share": "the share of all entities' throttle time",
        "throttled_minutes": "minutes with a throttle decision",
        "noted": "throttle decisions that were not enforced, because quotas.enforce was false",
        "noted_ms": "throttle time that was not enforced",
        "amount": f"{AMOUNTS} of the throttled requests",
        "peak_rate": "the highest rate at a throttle decision, in units per second",
        "address": "the address of the client with the longest throttle time; broker and api likewise",
    },
    build=_build,
    plots=_plots,
    findings=_findings,
)
