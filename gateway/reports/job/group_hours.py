"""The hourly table of groups: use, and the parts of a shared capacity that groups lend and borrow."""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from gateway.reports.job.hours import MINUTE_SECONDS, seconds_of

_TYPES: Final = {
    "string": ("kind", "group", "parent"),
    "bigint": ("minutes", "borrowed_minutes", "waited_seconds", "short_minutes", "throttled", "throttle_ms"),
    "double": ("amount", "guaranteed", "entitled", "lent", "borrowed"),
}
GROUP_COLUMNS: Final = ", ".join(f"{name} {of}" for of, names in _TYPES.items() for name in names)
"""The schema, without `date` and `hour`."""

SHORT_SECONDS: Final = 30
"""The least waiting time in a minute without its guarantee. Shorter waits also follow from bursts."""
SHORT: Final = 0.97
"""Less than this part of a guarantee is not the guarantee."""

_HOUR: Final = ("date", "hour")
_MINUTE: Final = (*_HOUR, "minute", "kind")


def group_hours(used: DataFrame, samples: DataFrame) -> DataFrame:
    """One row for each hour, kind and group. `used` are minutes of groups by their names, `samples` the events `group`.

    A minute's `entitled` and `guaranteed` amounts are the rates times 60. Use above the entitlement is `borrowed`. The siblings
    of a group borrow its unused entitlement first, and from each in proportion to the unused part: that is `lent`. Their parent
    borrows the rest. `lent` and `borrowed` are null for a group without a parent.

    `minutes` have a sample. In `short_minutes`, clients waited for at least `SHORT_SECONDS`, and the group got less than its
    guarantee for the seconds in which they waited.
    """
    each = (*_MINUTE, "group")
    amounts = used.groupBy(*each).agg(*(F.sum(name).alias(name) for name in ("amount", "throttled", "throttle_ms")))
    maxima = [F.max(name).alias(name) for name in ("parent", "guarantee", "entitlement")]
    of_gateways = (
        samples.withColumn("minute", F.floor(F.col("time_ms") % 3_600_000 / 60_000).cast("int"))
        .groupBy(*each, "gateway")
        .agg(*maxima, seconds_of("waited_seconds").alias("waited_seconds"))
    )
    rights = of_gateways.groupBy(*each).agg(*maxima, F.max("waited_seconds").alias("waited_seconds"))
    amount, entitled = F.coalesce("amount", F.lit(0.0)), F.col("entitlement") * MINUTE_SECONDS
    shared = F.col("parent").isNotNull()
    guarantee, waited = F.col("guarantee"), F.col("waited_seconds")
    is_short = (guarantee > 0) & (waited >= SHORT_SECONDS) & (amount < guarantee * waited * SHORT)
    siblings = Window.partitionBy(*_MINUTE, "parent")
    minutes = (
        amounts.join(rights, [*each], "full")
        .withColumns(
            {
                "borrowed": F.when(shared, F.greatest(amount - entitled, F.lit(0.0))),
                "unused": F.when(shared, F.greatest(entitled - amount, F.lit(0.0))),
            }
        )
        .withColumns({f"all_{name}": F.sum(name).over(siblings) for name in ("borrowed", "unused")})
        .withColumn("lent", F.col("unused") * F.least(F.try_divide("all_borrowed", "all_unused"), F.lit(1.0)))
    )
    return minutes.groupBy(*_HOUR, "kind", "group").agg(
        F.max_by("parent", F.when(shared, F.col("minute"))).alias("parent"),
        F.count("entitlement").alias("minutes"),
        F.sum("amount").alias("amount"),
        F.sum(guarantee * MINUTE_SECONDS).alias("guaranteed"),
        F.sum(entitled).alias("entitled"),
        F.sum("lent").alias("lent"),
        F.sum("borrowed").alias("borrowed"),
        F.count_if(F.col("borrowed") > 0).alias("borrowed_minutes"),
        F.sum("waited_seconds").alias("waited_seconds"),
        F.count_if(is_short).alias("short_minutes"),
        F.sum("throttled").alias("throttled"),
        F.sum("throttle_ms").alias("throttle_ms"),
    )
