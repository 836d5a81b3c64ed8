"""The bytes of owners by day: the table that `chargeback` and `trend` read.

Each byte belongs to one owner, so the sums are all bytes measured. Each byte also belongs to one group or to none.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gateway.reports.job.hours import BYTE_KINDS, FIVE_MINUTES, HOUR

OWNER: Final = ("owner_type", "owner", "kind")
UNOWNED: Final = "unowned"
GROUP: Final = "group"
PARENT_GROUP: Final = "parent group"
NO_GROUP: Final = "no group"

_ANONYMOUS: Final = "ANONYMOUS"
"""Kafka's user of a connection without authentication."""
_OTHER: Final = "<other>"
"""The user of the bucket that all clients beyond `quotas.max_entities` share."""
_INTERVALS: Final = [f"of_{place}" for place in range(60 // FIVE_MINUTES)]
_NO_USE: Final = float("-inf")
"""Stands for an interval without use: Spark sorts numbers far faster than numbers and nulls."""
_TOP: Final = 31 * 24 * 60 // FIVE_MINUTES // 20 + 1
"""A twentieth of the intervals of the longest month, and one more: the 95th percentile of a month is among as many."""


def owner_days(names: DataFrame, five_minutes: DataFrame, groups: DataFrame | None) -> DataFrame:
    """The bytes of each owner and kind on each date.

    `used` has the bytes of each five-minute interval with use, in ascending order, and `total` is their sum. `peak_rate` and
    `rate_95` are means over an interval, in bytes per second. With `groups`, `NO_GROUP` has all bytes outside of groups.
    """
    owners = owners_of(names).select("entity", *OWNER).distinct()
    amounts = (F.col("amounts")[place].alias(name) for place, name in enumerate(_INTERVALS))
    used = five_minutes.join(F.broadcast(owners), "entity").select(*HOUR, *OWNER, *amounts)
    known = owners.select(*OWNER)
    if groups is not None:
        used = _with_parents(used, groups)
        known = known.unionByName(known.where(F.col("owner_type") == GROUP).withColumn("owner_type", F.lit(PARENT_GROUP)))
    # One shuffle of numbers serves both sums: all hours of an owner's day are in one partition.
    by_id = used.select(*HOUR, F.xxhash64(*OWNER).alias("id"), *_INTERVALS).repartition("date", "id")
    hours = by_id.groupBy(*HOUR, "id").agg(*(F.sum(name).alias(name) for name in _INTERVALS))
    known = known.distinct().withColumn("id", F.xxhash64(*OWNER))
    days = _days(hours, ["id"]).join(F.broadcast(known), "id").drop("id")
    if groups is not None:
        days = days.unionByName(_days(_rest(used), OWNER))
    return days.select("date", *OWNER, "total", "used", *_rates())


def _days(hours: DataFrame, by: Sequence[str]) -> DataFrame:
    count = _sum_of([F.col(name).isNotNull().cast("int") for name in _INTERVALS])
    total = _sum_of([F.coalesce(name, F.lit(0.0)) for name in _INTERVALS])
    of_hour = F.array(*(F.coalesce(name, F.lit(_NO_USE)) for name in _INTERVALS))
    days = hours.groupBy("date", *by).agg(
        F.sort_array(F.flatten(F.collect_list(of_hour))).alias("used"), F.sum(count).alias("count"), F.sum(total).alias("total")
    )
    count = F.col("count").cast("int")
    return days.withColumn("used", F.slice("used", F.size("used") - count + 1, count)).drop("count")


def _rates() -> Sequence[Column]:
    """`peak_rate` and `rate_95` of `used`, an array in ascending order."""
    return (
        _rate(F.element_at("used", -1)).alias("peak_rate"),
        _rate(F.element_at("used", F.ceil(F.size("used") * 0.95).cast("int"))).alias("rate_95"),
    )


def months_of(days: DataFrame) -> DataFrame:
    """`owner_days` as parts of months: `top` has the bytes of the busiest intervals, and `count` counts all with use."""
    month = F.trunc("date", "month").alias("month")
    return days.select(month, *OWNER, "total", F.size("used").cast("long").alias("count"), F.col("used").alias("top"))


def summed_months(parts: DataFrame) -> DataFrame:
    """One row for each month and owner. `top` is in ascending order, and long enough for `rates_of_month`."""
    top = F.sort_array(F.flatten(F.collect_list("top"))).alias("top")
    months = parts.groupBy("month", *OWNER).agg(F.sum("total").alias("total"), F.sum("count").alias("count"), top)
    size = F.least(F.size("top"), F.lit(_TOP))
    return months.withColumn("top", F.slice("top", F.size("top") - size + 1, size))


def rates_of_month() -> Sequence[Column]:
    """`peak_rate` and `rate_95` of the rows of `summed_months`."""
    place = F.ceil(F.col("count") * 0.95) - F.col("count")
    return (
        _rate(F.element_at("top", -1)).alias("peak_rate"),
        _rate(F.element_at("top", (F.size("top") + place).cast("int"))).alias("rate_95"),
    )


def _rate(amount: Column) -> Column:
    return F.round(amount / (FIVE_MINUTES * 60)).cast("long")


def _sum_of(columns: Sequence[Column]) -> Column:
    return reduce(Column.__add__, columns)


def _with_parents(used: DataFrame, groups: DataFrame) -> DataFrame:
    """Tell `PARENT_GROUP` from `GROUP`: the group is a parent in this hour."""
    parents = groups.where(F.col("parent").isNotNull()).select(*HOUR, "kind", F.col("parent").alias("owner")).distinct()
    above = F.broadcast(parents.withColumn("above", F.lit(GROUP)))
    owner_type = F.when(F.col("owner_type") == F.col("above"), PARENT_GROUP).otherwise(F.col("owner_type"))
    return used.join(above, [*HOUR, "kind", "owner"], "left").withColumn("owner_type", owner_type).drop("above")


def _rest(used: DataFrame) -> DataFrame:
    """`NO_GROUP`: the bytes of all owners without those of groups with clients."""
    sign = F.when(F.col("owner_type") == GROUP, -1).when(F.col("owner_type") != PARENT_GROUP, 1)
    sums = (F.nullif(F.sum(F.col(name) * sign), F.lit(0.0)).alias(name) for name in _INTERVALS)
    rest = used.groupBy(*HOUR, "kind").agg(*sums).where(F.coalesce(*_INTERVALS).isNotNull())
    return rest.withColumns({"owner_type": F.lit(NO_GROUP), "owner": F.lit("")})


def owners_of(names: DataFrame) -> DataFrame:
    """`names` of byte kinds with `owner_type` and `owner`: a group, a user, or else a client-id.

    Nobody owns anonymous use without a client-id.
    """
    is_group = F.col(GROUP).isNotNull()
    is_user = F.col("user").isNotNull() & ~F.col("user").isin(_ANONYMOUS, _OTHER)
    is_client = ~F.col("user").eqNullSafe(F.lit(_OTHER)) & (F.col("client_id") != "")
    owner_type = F.when(is_group, GROUP).when(is_user, "user").when(is_client, "client-id").otherwise(UNOWNED)
    owner = F.when(is_group, F.col(GROUP)).when(is_user, F.col("user")).when(is_client, F.col("client_id")).otherwise("")
    of_bytes = names.where(F.col("kind").isin(BYTE_KINDS))
    return of_bytes.withColumns({"owner_type": owner_type, "owner": owner})
