"""Pairs of clients: one was slowed while the other was among the top users."""

from collections import Counter
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gateway.reports.job.columns import count, ratio
from gateway.reports.job.phrases import counted, percent
from gateway.reports.job.plots import bars, label
from gateway.reports.report import Finding, Plot, Report, ReportRow, Tables

_PAIR = ("user", "client_id", "by_user", "by_client_id")


def _build(tables: Tables) -> DataFrame:
    sums = ("minutes", "slowed_minutes", "held_minutes", "held_ms", "by_bytes", "all_bytes")
    clients = tables.clients
    by_names = clients.select(*(F.col(name).alias(f"by_{name}") for name in clients.columns))
    return (
        tables.table("neighbours")
        .groupBy("client", "by_client")
        .agg(*(F.sum(name).alias(name) for name in sums))
        .join(clients, "client")
        .join(by_names, "by_client")
        .where(~_may_be_same())
        .select(
            *_PAIR,
            "minutes",
            "slowed_minutes",
            "held_minutes",
            count("held_ms").alias("held_ms"),
            "by_bytes",
            ratio("by_bytes", "all_bytes").alias("by_share"),
        )
    )


def _may_be_same() -> Column:
    """True for a pair such as `user=alice` and `user=alice, client-id=app`: nobody is its own neighbour.

    The two share a name, and no name differs.
    """
    parts = [(F.col(part), F.col(f"by_{part}")) for part in ("user", "client_id")]
    shared = reduce(Column.__or__, (F.coalesce(one == other, F.lit(False)) for one, other in parts))
    differs = reduce(Column.__or__, (F.coalesce(one != other, F.lit(False)) for one, other in parts))
    return shared & ~differs


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    minutes = Counter[str]()
    for row in rows:
        minutes[label(row, "by_user", "by_client_id")] += row["minutes"]
    title = "Top users while other clients were slowed"
    return [bars(minutes.most_common(), title, "minutes, summed over the affected clients")]


def _findings(rows: Sequence[ReportRow]) -> Sequence[Finding]:
    if not rows:
        return []
    affected = {(row["user"], row["client_id"]) for row in rows}
    most = rows[0]
    by = label(most, "by_user", "by_client_id")
    return [
        Finding(
            f"{counted(len(affected), 'client was', 'clients were')} slowed while others used more: {label(most)} in"
            f" {counted(most['minutes'], 'minute', 'minutes')}, beside {by} with {percent(most['by_share'])} of the bytes.",
            f"Give {by} a quota or a lower one, or move its topics to other brokers.",
        )
    ]


REPORT = Report(
    name="noisy_neighbours",
    order=3,
    title="Noisy neighbours",
    question="Which clients were slowed, and which clients used more than they in the same minutes?",
    nothing="No client was slowed while another client used more.",
    sort=("-minutes", "-by_bytes", *_PAIR),
    columns={
        "user": "user of the slowed client; client_id likewise",
        "by_user": "user of the neighbour, one of the minute's three top users; by_client_id likewise",
        "minutes": "minutes in which the client was slowed or held; throttles by its own quota do not count",
        "slowed_minutes": "minutes with broker latency at least twice the hour's average, and at least 10 ms above it",
        "held_minutes": "minutes in which a full disk held the client's records",
        "held_ms": "throttle time of the client in the held minutes",
        "by_bytes": "bytes that the neighbour produced and fetched in these minutes",
        "by_share": "the neighbour's share of all clients' bytes in these minutes",
    },
    build=_build,
    plots=_plots,
    findings=_findings,
)
