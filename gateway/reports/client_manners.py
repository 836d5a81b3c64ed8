"""Clients that send before their throttle time is over, and addresses with rejected connections."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.quotas.kinds.connection import KIND as CONNECTIONS
from gateway.reports.job.columns import count, moment, ratio
from gateway.reports.job.phrases import counted
from gateway.reports.job.plots import bars, kind_label, named
from gateway.reports.report import ENTITY, Finding, Plot, Report, ReportRow, Tables


def _build(tables: Tables) -> DataFrame:
    nothing = F.lit(None).cast("string")
    early = tables.totals.where(F.col("early_count") > 0).select(
        F.lit("early_sends").alias("what"),
        *ENTITY,
        F.col("worst.address").alias("address"),
        nothing.alias("reason"),
        nothing.alias("listener"),
        F.col("early_count").alias("count"),
        (count("throttled") + count("noted")).alias("throttled"),
        ratio("early_count", count("throttled") + count("noted")).alias("early_fraction"),
        F.round(F.col("early_ms") / F.col("early_count"), 3).alias("early_mean_ms"),
        "early_max_ms",
        moment("first_ms").alias("since"),
        moment("last_ms").alias("until"),
    )
    rejected = (
        tables.table("connections")
        .groupBy("reason", "listener", "address", "user")
        .agg(F.sum("count").alias("count"), F.min("first_ms").alias("first_ms"), F.max("last_ms").alias("last_ms"))
        .select(
            F.lit("connections_rejected").alias("what"),
            F.lit(CONNECTIONS.name).alias("kind"),
            "user",
            "address",
            "reason",
            "listener",
            "count",
            moment("first_ms").alias("since"),
            moment("last_ms").alias("until"),
        )
    )
    return early.unionByName(rejected, allowMissingColumns=True)


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    early = [row for row in rows if row["what"] == "early_sends"]
    rejected = [row for row in rows if row["what"] == "connections_rejected"]
    plots = []
    if early:
        requests = [(kind_label(row), row["count"]) for row in early]
        plots.append(bars(requests, "Requests sent before the throttle time was over", "requests"))
    if rejected:
        connections = [(f"{row['user'] or row['address']}: {row['reason']}", row["count"]) for row in rejected]
        plots.append(bars(connections, "Rejected connections", CONNECTIONS.unit.name))
    return plots


def _findings(rows: Sequence[ReportRow]) -> Sequence[Finding]:
    early = [row for row in rows if row["what"] == "early_sends"]
    rejected = [row for row in rows if row["what"] == "connections_rejected"]
    found = []
    if early:
        requests = counted(sum(row["count"] for row in early), "request", "requests")
        found.append(
            Finding(
                f"{counted(len(early), 'entity', 'entities')} sent {requests} before the throttle time was over,"
                f" {named(early[0])} {early[0]['count']:,}.",
                "Requests already on their way count too, so a few, by milliseconds, are normal. Many, by seconds, mean that"
                " the client ignores throttle_time_ms (KIP-219). Look for a version that obeys it.",
            )
        )
    if rejected:
        connections = counted(sum(row["count"] for row in rejected), "connection", "connections")
        addresses = counted(len({row["address"] for row in rejected}), "address", "addresses")
        user = f"user {rejected[0]['user']} at " if rejected[0]["user"] else ""
        found.append(
            Finding(
                f"{connections} from {addresses} had to be closed, most often from {user}{rejected[0]['address']}"
                f" (reason: {rejected[0]['reason']}).",
                "Raise the limit that the reason names, or correct the client's certificate or password.",
            )
        )
    return found


REPORT = Report(
    name="client_manners",
    order=8,
    title="Client manners",
    question="Which clients send before their throttle time is over, and which connections were rejected?",
    nothing="Every client respected its throttle times, and no connection was rejected.",
    sort=("-count", "what", *ENTITY, "address", "reason", "listener"),
    columns={
        "what": "early_sends: an entity's early requests; connections_rejected: rejected connections of an address,"
        " and of the user whose limit refused them",
        "count": "the number of early requests or rejected connections",
        "throttled": "the number of throttle decisions for the entity",
        "early_fraction": "count / throttled; above 1.0 if a client sent several requests early",
        "early_mean_ms": "the mean time by which the requests were early",
        "address": "for early_sends: the address of the client with the longest throttle time",
    },
    build=_build,
    plots=_plots,
    findings=_findings,
)
