"""Topics with rejected Produce requests."""

from collections import Counter
from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.quotas.kinds import BYTES
from gateway.reports.job.columns import moment
from gateway.reports.job.phrases import counted
from gateway.reports.job.plots import bars
from gateway.reports.report import Finding, Plot, Report, ReportRow, Tables

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
    rejected = Counter[str]()
    for row in rows:
        rejected[row["topic"]] += row["bytes"]
    return [bars(rejected.most_common(), "Bytes rejected by topic", "bytes")]


def _findings(rows: Sequence[ReportRow]) -> Sequence[Finding]:
    found = []
    for enforced, verb in ((True, "were rejected"), (False, "would have been rejected")):
        rejected = [row for row in rows if row["enforced"] is enforced]
        if rejected:
            topics = counted(len({row["topic"] for row in rejected}), "topic", "topics")
            requests = counted(sum(row["rejections"] for row in rejected), "Produce request", "Produce requests")
            size = BYTES.text(sum(row["bytes"] for row in rejected))
            found.append(
                Finding(
                    f"{requests} with {size} to {topics} {verb}, most bytes to {rejected[0]['topic']}"
                    f" (reason: {rejected[0]['reason']}).",
                    "For the reason quota, raise the topic's threshold under quotas.topics or slow its producers. Other reasons"
                    " are errors of the brokers.",
                )
            )
    return found


REPORT = Report(
    name="topics",
    order=6,
    title="Rejected topics",
    question="Which clients' records to which topics were rejected, and why?",
    nothing="No topic was rejected in this period.",
    sort=("-bytes", *_BY),
    columns={
        "reason": "quota: the topic and the total exceeded their thresholds; otherwise the broker's error",
        "enforced": "false if Weir only recorded the rejections and forwarded the requests",
        "rejections": "rejected Produce requests",
        "peak_rate": "the topic's highest rate at a rejection, in bytes per second; peak_total_rate: for all topics",
    },
    build=_build,
    plots=_plots,
    findings=_findings,
    unit=BYTES,
)
