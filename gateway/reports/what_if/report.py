"""The report `what_if`: the clients that other quotas would have throttled."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gateway.reports.job.columns import minute_since_1970, ratio
from gateway.reports.job.hours import ENTITY_MINUTES
from gateway.reports.job.phrases import counted
from gateway.reports.job.plots import bars, kind_label, named
from gateway.reports.report import ENTITY, Finding, Plot, Report, ReportRow, Tables
from gateway.reports.what_if.replay import minutes_of_targets, replayed, totals
from gateway.reports.what_if.targets import LIMITED, UNDECIDED, LedgerEntity, Target, WhatIfQuotas

_TARGETS: Final = (
    "array<struct<entity: long, target: long, kind: string, user: string, client_id: string, ip: string, group: string,"
    " verdict: string, quota: string, limit: double, burst: double>>"
)
_FIGURES: Final = (
    "minutes", "recorded_minutes", "throttled_minutes", "throttled_fraction", "catch_up_minutes", "throttle_seconds",
    "delay_max_seconds", "behind_seconds", "estimated_minutes",
)  # fmt: skip


def what_if_report(spark: SparkSession, quotas: WhatIfQuotas) -> Report:
    """The report of one run: the other reports need no file."""

    def build(tables: Tables) -> DataFrame:
        return _build(spark, quotas, tables)

    return Report(
        name="what_if",
        order=-1,
        title="What if",
        question="Which clients would the quotas of the given file have throttled, how often and how long?",
        nothing="The ledger has no use of a kind with quotas in this period.",
        sort=("-throttled_minutes", "-throttle_seconds", *ENTITY, "quota"),
        columns={
            "verdict": "limited; unlimited; undecided: the ledger lacks a name that the file's quotas look at",
            "quota": "the entity of the file whose limit or exemption would have applied",
            "limit": "units per second",
            "minutes": "minutes with use",
            "recorded_minutes": "of these, minutes with throttles in the ledger, by the quotas of that time",
            "throttled_minutes": "minutes in which the bucket would have been in debt, those of catch_up_minutes included",
            "throttled_fraction": "throttled_minutes / (minutes + catch_up_minutes)",
            "catch_up_minutes": "minutes without use in the ledger, in which the client would have sent the rest",
            "throttle_seconds": "time in debt",
            "delay_max_seconds": "how late data would have been at most, all its throttle times together: debt / limit",
            "behind_seconds": "debt / limit at the end of the period; it grows with time if the limit is below the demand",
            "estimated_minutes": "minutes with throttles in the ledger: their demand is estimated, as in right_sizing",
        },
        build=build,
        plots=_plots,
        findings=_findings,
        many_rows=True,
    )


def _build(spark: SparkSession, quotas: WhatIfQuotas, tables: Tables) -> DataFrame:
    minutes = tables.table(ENTITY_MINUTES)
    targets = _targets(spark, quotas, tables)
    limits = targets.where(F.col("verdict") == LIMITED).select("target", "limit", "burst").distinct()
    of_targets = minutes_of_targets(minutes, targets.select("entity", "target"))
    limited = totals(replayed(of_targets.join(F.broadcast(limits), "target"), _last_minute(tables)))
    others = of_targets.join(F.broadcast(limits), "target", "left_anti").groupBy("target")
    unlimited = others.agg(F.count("*").alias("minutes"), F.count_if("recorded").alias("recorded_minutes"))
    figures = limited.unionByName(unlimited, allowMissingColumns=True)
    names = targets.select("target", *ENTITY, "verdict", "quota", "limit").distinct()
    busy = F.col("minutes") + F.col("catch_up_minutes")
    return (
        figures.join(F.broadcast(names), "target")
        .withColumn("throttled_fraction", ratio("throttled_minutes", busy))
        .select(*ENTITY, "verdict", "quota", "limit", *_FIGURES)
    )


def _targets(spark: SparkSession, quotas: WhatIfQuotas, tables: Tables) -> DataFrame:
    """One row for each `entity` of the ledger, with the number of its `target` and the target's fields."""
    numbers: dict[Target, int] = {}
    rows = []
    entities = tables.names.select("entity", *ENTITY).distinct().collect()
    found = quotas.targets([LedgerEntity(*(row[name] for name in ENTITY)) for row in entities])
    for row, targets in zip(entities, found, strict=True):
        numbered = {target: numbers.setdefault(target, len(numbers)) for target in targets}
        rows += [{"entity": row["entity"], "target": number, **asdict(target)} for target, number in numbered.items()]
    # As JSON, because `createDataFrame` may need Python on each node of a cluster.
    return spark.range(1).select(F.inline(F.from_json(F.lit(json.dumps(rows)), _TARGETS)))


def _last_minute(tables: Tables) -> int:
    last = tables.minutes.agg(F.max(minute_since_1970()).alias("at")).first()
    return 0 if last is None or last["at"] is None else int(last["at"])


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    throttled = [(kind_label(row), row["throttled_minutes"]) for row in rows if row["throttled_minutes"]]
    return [bars(throttled, "Throttled minutes with the quotas of the file", "minutes")] if throttled else []


def _findings(rows: Sequence[ReportRow]) -> Sequence[Finding]:
    found = []
    throttled = [row for row in rows if row["throttled_minutes"]]
    undecided = sum(row["verdict"] == UNDECIDED for row in rows)
    if throttled:
        entities = counted(len(throttled), "entity", "entities")
        minutes = counted(throttled[0]["throttled_minutes"], "minute", "minutes")
        text = f"The quotas of the file would have throttled {entities}, {named(throttled[0])} in {minutes}."
        found.append(Finding(text, "Raise the limits of entities that should not wait, and run the report again."))
    if undecided:
        text = f"The ledger does not have all names that decide about {counted(undecided, 'entity', 'entities')}."
        found.append(Finding(text, "Let the gateway measure each user and client-id, as the guide to reports describes."))
    return found
