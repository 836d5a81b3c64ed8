"""Topics whose produce requests were rejected."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.reports.job.columns import moment
from gateway.reports.job.plots import bars
from gateway.reports.report import Plot, Report, ReportRow, Tables

_BY = ("topic", "reason", "enforced", "user", "client_id")


def _build(tables: Tables) -> DataFrame:
    last = F.max(F.struct("last_ms", "limit", "total_limit"))
    return (
        tables.table("topics")
        .groupBy(*_BY)
        .agg(
            F.sum("rejections").alias("rejections"),
            F.sum("bytes").alias("bytes"),
            F.max("peak_rate").alias("peak_rate"),
            last["limit"].alias("limit"),
            F.max("peak_total_rate").alias("peak_total_rate"),
            last["total_limit"].alias("total_limit"),
            F.min("first_ms").alias("first_ms"),
            F.max("last_ms").alias("last_ms"),
        )
        .withColumns({"since": moment("first_ms"), "until": moment("last_ms")})
        .drop("first_ms", "last_ms")
    )


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    by_topic: dict[str, float] = {}
    for row in rows:
        by_topic[row["topic"]] = by_topic.get(row["topic"], 0.0) + row["bytes"]
    ordered = [{"topic": topic, "bytes": amount} for topic, amount in sorted(by_topic.items(), key=lambda one: -one[1])]
    return [bars(ordered, "Bytes rejected by topic", "bytes", lambda row: row["bytes"], lambda row: str(row["topic"]))]


REPORT = Report(
    name="topics",
    order=6,
    title="Topics rejected",
    question="Whose records to which topics were turned away, and why?",
    nothing="No topic was rejected in this period.",
    sort=("-bytes", *_BY),
    columns={
        "reason": "quota: the topic and the total were over their thresholds; else the broker's error",
        "enforced": "false: only noted what would have been rejected",
        "rejections": "produce requests",
        "peak_rate": "the topic's highest bytes per second at a rejection; likewise peak_total_rate for all topics",
    },
    build=_build,
    plots=_plots,
)
