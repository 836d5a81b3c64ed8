"""The states of the volume quota over time, and the volume that caused each."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from gateway.reports.job.columns import minute_since_1970, moment, ratio
from gateway.reports.job.hours import gateway_bit
from gateway.reports.job.phrases import counted, duration
from gateway.reports.job.plots import lines
from gateway.reports.report import Finding, Plot, Report, ReportRow, Tables

_NEVER_MS = 2**62


def _build(tables: Tables) -> DataFrame:
    of_gateway = Window.partitionBy("gateway").orderBy("time_ms")
    changes = (
        tables.table("changes")
        .where(F.col("type") == "volume_state")
        .withColumn("next_ms", F.lead("time_ms").over(of_gateway))
        .withColumn("goes_on", F.lead("previous").over(of_gateway) == F.col("state"))
    )
    end = (minute_since_1970() + 1) * 60_000
    minutes = tables.minutes.groupBy(end.alias("end_ms")).agg(F.bit_or("gateways").alias("gateways"))
    bit = gateway_bit()
    between = (F.col("end_ms") > F.col("time_ms")) & (F.col("end_ms") < F.coalesce("next_ms", F.lit(_NEVER_MS)) + 60_000)
    reported = F.col("gateways").bitwiseAND(F.col("bit")) != 0
    known = (
        minutes.join(F.broadcast(changes.select("gateway", "time_ms", "next_ms", bit.alias("bit"))), reported & between)
        .groupBy("gateway", "time_ms")
        .agg(F.max("end_ms").alias("known_ms"))
    )
    # A killed gateway does not report the end of its pause. Its next state then follows OPEN, not the pause. The last minute
    # with lines ends the pause.
    ended = F.least("next_ms", F.greatest("known_ms", "time_ms"))
    return (
        changes.join(F.broadcast(known), ["gateway", "time_ms"], "left")
        .withColumn("until_ms", F.when(F.col("goes_on"), F.col("next_ms")).otherwise(ended))
        .select(
            "gateway",
            moment("time_ms").alias("since"),
            moment("until_ms").alias("until"),
            F.round((F.col("until_ms") - F.col("time_ms")) / 1000, 3).alias("seconds"),
            "state",
            "previous",
            "enforced",
            "factor",
            "reason",
            "broker",
            "volume",
            "capacity_bytes",
            "consumed_bytes",
            ratio("consumed_bytes", "capacity_bytes").alias("used"),
        )
    )


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    if not rows:
        return []
    series = {}
    for gateway in sorted({row["gateway"] for row in rows}):
        times: list[object] = []
        factors: list[float] = []
        for row in (row for row in rows if row["gateway"] == gateway):
            times += [row["since"], row["until"]]
            factors += [row["factor"] * 100 if row["enforced"] else 100] * 2
        series[gateway] = (times, factors)
    return [lines("Produce rate that the volume quota allows", "% of the normal rate", series)]


def _findings(rows: Sequence[ReportRow]) -> Sequence[Finding]:
    found = []
    for enforced, verb in ((True, "slowed or paused"), (False, "would have slowed or paused")):
        held = [row for row in rows if row["enforced"] is enforced and row["factor"] < 1]
        full = [row for row in held if row["reason"] != "unknown"]
        if full:
            longest = _longest(full)
            found.append(
                Finding(
                    f"A full disk {verb} producers {_extent(full)}: {longest['volume']} of broker {longest['broker']}.",
                    "Shorten the retention of large topics on this broker, or give it more disk.",
                )
            )
        unknown = [row for row in held if row["reason"] == "unknown"]
        if unknown:
            found.append(
                Finding(
                    f"Unknown disk usage {verb} producers {_extent(unknown)}.",
                    "Find the missing or stale usage with the runbook WeirVolumeUsageUnknown.",
                )
            )
    return found


def _longest(rows: Sequence[ReportRow]) -> ReportRow:
    return max(rows, key=lambda row: row["seconds"])


def _extent(rows: Sequence[ReportRow]) -> str:
    gateways = counted(len({row["gateway"] for row in rows}), "gateway", "gateways")
    return f"{counted(len(rows), 'time', 'times')} at {gateways}, up to {duration(_longest(rows)['seconds'])}"


REPORT = Report(
    name="volumes",
    order=7,
    title="Volumes",
    question="When did a full disk slow or pause the producers, and which disk was it?",
    nothing="The volume quota never changed its state in this period.",
    sort=("gateway", "since"),
    columns={
        "until": "the time of the next change; at the gateway's end, or if it was killed, the minute of its last line",
        "enforced": "true if Weir slowed or paused the producers; false if it only recorded the state",
        "factor": "the allowed share of the producers' rate",
        "volume": "the log directory that caused the state; broker likewise",
        "used": "the used share of the volume",
    },
    build=_build,
    plots=_plots,
    findings=_findings,
)
