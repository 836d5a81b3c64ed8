"""Bytes by owner, kind and day, for invoices. Each byte belongs to one owner, so the sums are all bytes measured.

Each byte also belongs to one group or to none. So invoices by group have the same sum.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gateway.quotas.kinds import BYTES
from gateway.reports.job.owners import GROUP, NO_GROUP, OWNER, PARENT_GROUP, UNOWNED
from gateway.reports.job.phrases import counted, percent
from gateway.reports.job.plots import bars
from gateway.reports.report import Finding, Plot, Report, ReportRow, Tables

OF_GROUPS: Final = (GROUP, PARENT_GROUP, NO_GROUP)
"""The owner types that count the bytes of the other types once more."""
RATES: Final = "mean rate of the busiest five minutes, in bytes per second"
PERCENTILE: Final = "95 % of the five-minute intervals with use had at most this mean rate"


def sums() -> Sequence[Column]:
    """`total` as `used_bytes`, or as `group_bytes` for `OF_GROUPS`: the rows of other owners count these bytes."""
    total, of_group = F.col("total").cast("long"), F.col("owner_type").isin(*OF_GROUPS)
    return F.when(~of_group, total).alias("used_bytes"), F.when(of_group, total).alias("group_bytes")


def _build(tables: Tables) -> DataFrame:
    return tables.owner_days.select("date", *OWNER, *sums(), "peak_rate", "rate_95")


def _plots(rows: Sequence[ReportRow]) -> Sequence[Plot]:
    last = max(row["date"] for row in rows)
    largest = [
        (owner_label(row), row["used_bytes"]) for row in rows if row["date"] == last and row["owner_type"] not in OF_GROUPS
    ]
    return [bars(largest, f"Bytes by owner on {last}", BYTES.name)]


def owner_label(row: ReportRow) -> str:
    """The owner of a row, such as `produce: user=alice`."""
    owner = f"{row['owner_type']}={row['owner']}" if row["owner"] else row["owner_type"]
    return f"{row['kind']}: {owner}"


def _findings(rows: Sequence[ReportRow]) -> Sequence[Finding]:
    unowned = sum(row["used_bytes"] for row in rows if row["owner_type"] == UNOWNED)
    if not unowned:
        return []
    days = counted(len({row["date"] for row in rows if row["owner_type"] == UNOWNED}), "day", "days")
    share = percent(unowned / sum(row["used_bytes"] for row in rows if row["used_bytes"] is not None))
    return [
        Finding(
            f"Nobody owns {share} of all bytes: {BYTES.text(unowned)} on {days}.",
            "Make clients authenticate, or raise quotas.max_entities if more clients than that were active.",
        )
    ]


REPORT = Report(
    name="chargeback",
    order=10,
    title="Chargeback",
    question="How many bytes did each owner produce and fetch on each day?",
    nothing="No client produced or fetched records in this period.",
    sort=("-date", "-used_bytes", "-group_bytes", *OWNER),
    columns={
        "owner_type": "user; client-id if the quota does not look at the user; unowned: anonymous use without a client-id, and"
        " clients beyond quotas.max_entities. The types group, no group and parent group count the same bytes by group",
        "used_bytes": "bytes of requests and responses with records; the sum over all rows is all bytes measured",
        "group_bytes": "the same bytes by group. The sum over the types group and no group is all bytes measured. A parent"
        " group has the bytes of the groups below it once more",
        "peak_rate": RATES,
        "rate_95": PERCENTILE,
    },
    build=_build,
    plots=_plots,
    findings=_findings,
    unit=BYTES,
)
