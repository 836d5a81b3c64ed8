"""Bytes by owner, kind and day, for invoices. Each byte belongs to one owner, so the sums are all bytes measured.

Each byte also belongs to one group or to none. So invoices by group have the same sum.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gateway.quotas.kinds import BYTES, UNITS
from gateway.reports.job.hours import FIVE_MINUTES
from gateway.reports.job.phrases import counted, percent
from gateway.reports.job.plots import bars
from gateway.reports.report import Finding, Plot, Report, ReportRow, Tables

OWNER: Final = ("owner_type", "owner", "kind")
UNOWNED: Final = "unowned"
GROUP: Final = "group"
PARENT_GROUP: Final = "parent group"
NO_GROUP: Final = "no group"
OF_GROUPS: Final = (GROUP, PARENT_GROUP, NO_GROUP)
"""The owner types that count the bytes of the other types once more."""
RATES: Final = "mean rate of the busiest five minutes, in bytes per second"
PERCENTILE: Final = "95 % of the five-minute intervals with use had at most this mean rate"

_ANONYMOUS: Final = "ANONYMOUS"
"""Kafka's user of a connection without authentication."""
_OTHER: Final = "<other>"
"""The user of the bucket that all clients beyond `quotas.max_entities` share."""
_BYTE_KINDS: Final = [kind.name for kind in UNITS[BYTES]]
_INTERVALS: Final = 60 // FIVE_MINUTES


def owned(tables: Tables) -> DataFrame:
    """The bytes of each owner and kind in the five-minute intervals of each hour: `amounts` has one item each.

    An item is null without use. If there are groups, `NO_GROUP` has all bytes outside of them.
    """
    owners = tables.names.where(F.col("kind").isin(_BYTE_KINDS)).select("entity", *_owner_columns(), "kind").distinct()
    sums = (F.sum(F.col("amounts")[place]).alias(f"of_{place}") for place in range(_INTERVALS))
    sized = tables.table("five_minutes").join(F.broadcast(owners), "entity").groupBy("date", "hour", *OWNER).agg(*sums)
    if not owners.where(F.col("owner_type") == GROUP).isEmpty():
        sized = _with_rest(sized, tables.table("groups"))
    return sized.select("date", *OWNER, F.array(*(f"of_{place}" for place in range(_INTERVALS))).alias("amounts"))


def _with_rest(sized: DataFrame, groups: DataFrame) -> DataFrame:
    """Tell `PARENT_GROUP` from `GROUP`, and add `NO_GROUP`: the bytes of all owners without those of groups with clients."""
    parents = (
        groups.where(F.col("parent").isNotNull()).select("date", "hour", "kind", F.col("parent").alias("owner")).distinct()
    )
    kept = sized.join(
        F.broadcast(parents.withColumn("above", F.lit(GROUP))), ["date", "hour", "kind", "owner"], "left"
    ).withColumn("owner_type", F.when(F.col("owner_type") == F.col("above"), PARENT_GROUP).otherwise(F.col("owner_type")))
    sign = F.when(F.col("owner_type") == GROUP, -1).when(F.col("owner_type") != PARENT_GROUP, 1)
    names = [f"of_{place}" for place in range(_INTERVALS)]
    sums = (F.nullif(F.sum(F.col(name) * sign), F.lit(0.0)).alias(name) for name in names)
    rest = kept.groupBy("date", "hour", "kind").agg(*sums).where(F.coalesce(*names).isNotNull())
    marked = rest.withColumns({"owner_type": F.lit(NO_GROUP), "owner": F.lit("")})
    return kept.drop("above").unionByName(marked)


def _owner_columns() -> Sequence[Column]:
    """`owner_type` and `owner`: a group, a user, or else a client-id. Nobody owns anonymous use without a client-id."""
    is_group = F.col(GROUP).isNotNull()
    is_user = F.col("user").isNotNull() & ~F.col("user").isin(_ANONYMOUS, _OTHER)
    is_client = ~F.col("user").eqNullSafe(F.lit(_OTHER)) & (F.col("client_id") != "")
    return (
        F.when(is_group, GROUP).when(is_user, "user").when(is_client, "client-id").otherwise(UNOWNED).alias("owner_type"),
        F.when(is_group, F.col(GROUP))
        .when(is_user, F.col("user"))
        .when(is_client, F.col("client_id"))
        .otherwise("")
        .alias("owner"),
    )


def figures(amounts: DataFrame, *by: str) -> DataFrame:
    """The `used_bytes`, `peak_rate` and `rate_95` of `owned` rows with the same `by`.

    The types `OF_GROUPS` have `group_bytes` in place of `used_bytes`: the rows of other owners count these bytes.
    """
    used = F.filter("amounts", F.isnotnull)
    total = F.aggregate("used", F.lit(0.0), lambda total, one: total + one).cast("long")
    of_group = F.col("owner_type").isin(*OF_GROUPS)
    return (
        amounts.groupBy(*by)
        .agg(F.sort_array(F.flatten(F.collect_list(used))).alias("used"))
        .select(
            *by,
            F.when(~of_group, total).alias("used_bytes"),
            F.when(of_group, total).alias("group_bytes"),
            _rate(F.array_max("used")).alias("peak_rate"),
            _rate(F.element_at("used", F.ceil(F.size("used") * 0.95).cast("int"))).alias("rate_95"),
        )
    )


def _rate(amount: Column) -> Column:
    return F.round(amount / (FIVE_MINUTES * 60)).cast("long")


def _build(tables: Tables) -> DataFrame:
    return figures(owned(tables), "date", *OWNER)


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
