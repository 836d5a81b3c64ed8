"""Which clients don't wait when they are told to, and which are turned away at the door."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.quotas.kinds.connection import KIND as CONNECTIONS
from gateway.reports.job.columns import count, moment, ratio
from gateway.reports.job.plots import bars, label
from gateway.reports.report import Plot, Report, ReportRow, Tables


def _build(tables: Tables) -> DataFrame:
    nothing = F.lit(None).cast("string")
    early = tables.totals.where(F.col("early_count") > 0).select(
        F.lit("early_sends").alias("what"),
        "kind",
        "user",
        "client_id",
        "ip",
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
    turned_away = (
        tables.table("connections")
        .groupBy("reason", "listener", "address")
        .agg(F.sum("count").alias("count"), F.min("first_ms").alias("first_ms"), F.max("last_ms").alias("last_ms"))
        .select(
            F.lit("connections_rejected").alias("what"),
            F.lit(CONNECTIONS.name).alias("kind"),
            "address",
            "reason",
            "listener",
            "count",
            moment("first_ms").alias("since"),
            moment("last_ms").alias("until"),
        )
    )
    return early.unionByName(turned_away, allowMissingColumns=True)


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    early = [row for row in rows if row["what"] == "early_sends"]
    rejected = [row for row in rows if row["what"] == "connections_rejected"]
    plots = []
    if early:
        plots.append(
            bars(
                early,
                "Sent before the throttle time was over",
                "times",
                lambda row: row["count"],
                lambda row: f"{row['kind']}: {label(row)}",
            )
        )
    if rejected:
        plots.append(
            bars(
                rejected,
                "Connections rejected",
                CONNECTIONS.unit.name,
                lambda row: row["count"],
                lambda row: f"{row['address']}: {row['reason']}",
            )
        )
    return plots


REPORT = Report(
    name="client_manners",
    order=8,
    title="Client manners",
    question="Who sends before its throttle time is over, and whose connections were turned away?",
    nothing="Every client waited as long as it was told to, and no connection was rejected.",
    sort=("-count", "what", "kind", "user", "client_id", "ip", "address", "reason", "listener"),
    columns={
        "what": "early_sends: an entity's requests before its time; connections_rejected: an address's connections",
        "count": "how often",
        "throttled": "how often it was told to wait",
        "early_fraction": "count / throttled; above 1.0 it sent several times",
        "early_mean_ms": "how much too early, on average",
        "address": "for early sends: of the client that had to wait longest",
    },
    build=_build,
    plots=_plots,
)
