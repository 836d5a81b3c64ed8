"""Controller mutations (KIP-599): the entities that create and delete partitions, and their throttle times."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.quotas.kinds.controller_mutation import KIND
from gateway.reports.job.columns import count, moment
from gateway.reports.job.phrases import counted, duration
from gateway.reports.job.plots import bars, label
from gateway.reports.report import Finding, Plot, Report, ReportRow, Tables


def _build(tables: Tables) -> DataFrame:
    return tables.totals.where(F.col("kind") == KIND.name).select(
        "user",
        "client_id",
        "group",
        "quota",
        "limit",
        F.coalesce("amount", F.lit(0.0)).alias("mutations"),
        F.coalesce("peak_minute", F.lit(0.0)).alias("peak_minute"),
        count("requests").alias("requests"),
        count("throttled").alias("throttled"),
        F.coalesce("throttled_amount", F.lit(0.0)).alias("throttled_mutations"),
        count("throttle_ms").alias("throttle_ms"),
        count("throttle_max_ms").alias("throttle_max_ms"),
        F.col("worst.api").alias("api"),
        F.col("worst.address").alias("address"),
        moment("first_ms").alias("since"),
    )


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    return [bars([(label(row), row["mutations"]) for row in rows], "Partitions created and deleted", KIND.unit.name)]


def _findings(rows: Sequence[ReportRow]) -> Sequence[Finding]:
    held = [row for row in rows if row["throttled"]]
    if not held:
        return []
    time = duration(sum(row["throttle_ms"] for row in held) / 1000)
    return [
        Finding(
            f"{counted(len(held), 'entity was', 'entities were')} throttled for {time} by the quota on mutations;"
            f" {label(held[0])} had {counted(held[0]['throttled'], 'throttle', 'throttles')}.",
            "Create and delete topics in smaller steps, or raise controller_mutation_rate for these clients.",
        )
    ]


REPORT = Report(
    name="mutations",
    order=5,
    title="Controller mutations",
    question="Which entities create and delete partitions, how many, and how long were they throttled?",
    nothing="No client created or deleted topics or partitions through Weir in this period.",
    sort=("-throttle_ms", "-mutations", "user", "client_id", "group"),
    columns={
        "limit": "partitions per second",
        "mutations": "partitions created, added or deleted",
        "peak_minute": "mutations in the busiest minute",
        "throttled": "requests that were throttled or had topics rejected",
        "throttled_mutations": "partitions in these requests",
        "api": "the API with the longest throttle time; address: the client's address",
        "since": "the time of the first throttle",
    },
    build=_build,
    plots=_plots,
    findings=_findings,
    unit=KIND.unit,
)
