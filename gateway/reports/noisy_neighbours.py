"""Who was throttled or slowed while who used most."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.reports.job.columns import count, ratio
from gateway.reports.job.plots import bars, label
from gateway.reports.report import Plot, Report, ReportRow, Tables

_PAIR = ("user", "client_id", "by_user", "by_client_id")


def _build(tables: Tables) -> DataFrame:
    names = ("minutes", "throttled_minutes", "slowed_minutes", "throttle_ms", "by_bytes", "all_bytes")
    return (
        tables.table("neighbours")
        .groupBy(*_PAIR)
        .agg(*(F.sum(name).alias(name) for name in names))
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
    together: dict[str, int] = {}
    for row in rows:
        neighbour = label(row, "by_user", "by_client_id")
        together[neighbour] = together.get(neighbour, 0) + row["minutes"]
    ordered = [{"name": name, "minutes": minutes} for name, minutes in sorted(together.items(), key=lambda one: -one[1])]
    title = "Used most while others suffered"
    return [bars(ordered, title, "minutes, of all that suffered", lambda row: row["minutes"], lambda row: str(row["name"]))]


REPORT = Report(
    name="noisy_neighbours",
    order=3,
    title="Noisy neighbours",
    question="Who was throttled or slowed, and who used most in the same minutes?",
    nothing="Nobody was throttled or slowed while others used more.",
    sort=("-slowed_minutes", "-minutes", "-by_bytes", *_PAIR),
    columns={
        "user": "who was throttled or slowed; likewise client_id",
        "by_user": "who was among the three that produced and fetched most then; likewise by_client_id",
        "minutes": "in which both was so",
        "slowed_minutes": "in which brokers took twice as long for it as usual in that hour, and 10 ms more",
        "throttle_ms": "throttle time in those minutes",
        "by_bytes": "what the neighbour produced and fetched in them",
        "by_share": "of everybody's bytes in them",
    },
    build=_build,
    plots=_plots,
)
