"""Pairs of clients: one was throttled or slowed while the other was among the top users."""

from collections import Counter
from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.reports.job.columns import count, ratio
from gateway.reports.job.plots import bars, label
from gateway.reports.report import Plot, Report, ReportRow, Tables

_PAIR = ("user", "client_id", "by_user", "by_client_id")


def _build(tables: Tables) -> DataFrame:
    sums = ("minutes", "throttled_minutes", "slowed_minutes", "throttle_ms", "by_bytes", "all_bytes")
    clients = tables.clients
    by_names = clients.select(*(F.col(name).alias(f"by_{name}") for name in clients.columns))
    return (
        tables.table("neighbours")
        .groupBy("client", "by_client")
        .agg(*(F.sum(name).alias(name) for name in sums))
        .join(clients, "client")
        .join(by_names, "by_client")
        .select(
            *_PAIR,
            "minutes",
            "throttled_minutes",
            "slowed_minutes",
            count("throttle_ms").alias("throttle_ms"),
            "by_bytes",
            ratio("by_bytes", "all_bytes").alias("by_share"),
        )
    )


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    minutes = Counter[str]()
    for row in rows:
        minutes[label(row, "by_user", "by_client_id")] += row["minutes"]
    title = "Top users while other clients were throttled or slowed"
    return [bars(minutes.most_common(), title, "minutes, summed over the affected clients")]


REPORT = Report(
    name="noisy_neighbours",
    order=3,
    title="Noisy neighbours",
    question="Which clients were throttled or slowed, and which clients used most in the same minutes?",
    nothing="No client was throttled or slowed while another client was among the top users.",
    sort=("-slowed_minutes", "-minutes", "-by_bytes", *_PAIR),
    columns={
        "user": "user of the affected client; client_id likewise",
        "by_user": "user of the neighbour, one of the minute's three top users; by_client_id likewise",
        "minutes": "minutes with both clients in these roles",
        "slowed_minutes": "minutes with broker latency at least twice the hour's average, and at least 10 ms above it",
        "throttle_ms": "throttle time of the affected client in these minutes",
        "by_bytes": "bytes that the neighbour produced and fetched in these minutes",
        "by_share": "the neighbour's share of all clients' bytes in these minutes",
    },
    build=_build,
    plots=_plots,
)
