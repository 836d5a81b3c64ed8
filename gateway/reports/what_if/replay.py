"""The arithmetic of the token bucket over the minutes of the ledger, as Spark columns.

Instead of tokens it counts the units that are missing from the full bucket. They shrink by `limit` per second, down to 0. Above
`burst` the bucket is in debt. This is Lindley's recursion: `missing = max(0, missing + change)`. Its closed form is the
sum of all changes minus the lowest sum so far, which two window functions compute.

The units of a minute flow evenly in its active seconds, which begin with the minute. Units over the quota are not lost: the
client sends them later, so a debt lasts into the following minutes.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from gateway.reports.job.columns import minute_since_1970
from gateway.reports.job.hours import MINUTE_SECONDS, demand_seconds
from gateway.reports.what_if.targets import SHORTEST_DELAY


def minutes_of_targets(entity_minutes: DataFrame, targets: DataFrame) -> DataFrame:
    """One row for each target and minute with use. `targets` has `entity` and `target`; `at` is the minute since 1970.

    `used` is measured. `wanted` is more in minutes with throttles (`estimated`): the use of a throttled client does not show
    its demand. `seconds` are active ones; clients with a common target are active independently of each other.
    """
    held = (F.col("throttled") > 0) & (F.col("amount") > 0)
    wanted = F.when(held, F.col("amount") * F.col("seconds") / demand_seconds()).otherwise(F.col("amount"))
    idle = F.product(1 - F.col("seconds") / MINUTE_SECONDS)
    return (
        entity_minutes.where(F.col("minute").isNotNull() & F.col("amount").isNotNull())
        .join(F.broadcast(targets), "entity")
        .groupBy("target", minute_since_1970().alias("at"))
        .agg(
            F.sum("amount").alias("used"),
            F.sum(wanted).alias("wanted"),
            F.bool_or(F.coalesce(held, F.lit(False))).alias("estimated"),
            F.bool_or((F.col("throttled") > 0) | (F.col("noted") > 0)).alias("recorded"),
            (MINUTE_SECONDS * (1 - idle)).alias("seconds"),
        )
    )


def replayed(minutes: DataFrame, end: int) -> DataFrame:
    """`minutes` with `limit` and `burst`, and the debt of each minute. `end` is the last minute of the period.

    `throttle_seconds` is the time in debt. `delay` is how late data would have been at most, in seconds. After the minute, the
    debt lasts for `catch_up_seconds` until the next row, and `behind_seconds` are left then.
    """
    by_time = Window.partitionBy("target").orderBy("at")
    so_far = by_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    limit, seconds = F.col("limit"), F.col("seconds")
    idle = (MINUTE_SECONDS - seconds) * limit
    gap = F.coalesce(F.col("at") - F.lag("at").over(by_time) - 1, F.lit(0))
    later = F.coalesce(F.lead("at").over(by_time) - 1, F.lit(end)) - F.col("at")
    exceeds = F.col("estimated") & (F.col("wanted") > seconds * limit)
    timed = minutes.select(
        "*",
        (F.col("used") - seconds * limit).alias("rise"),
        (F.col("wanted") - seconds * limit).alias("wanted_rise"),
        idle.alias("idle"),
        (gap * MINUTE_SECONDS * limit).alias("drained"),
        # A client that wanted more than its limit in the minute before has used its burst.
        (exceeds & (gap == 0) & F.coalesce(F.lag(exceeds).over(by_time), F.lit(False))).alias("goes_on"),
        (later * MINUTE_SECONDS).alias("later_seconds"),
    )
    summed = timed.withColumn("sum", F.sum(F.col("rise") - F.col("idle") - F.col("drained")).over(so_far))
    after = F.col("sum") + F.col("idle")
    before = after - F.col("rise")
    lowest = F.min(F.least(F.lit(0.0), before, after, F.col("sum"))).over(so_far)
    bounded = summed.withColumns({"before": before, "lowest": lowest})
    lowest_before = F.least(F.coalesce(F.lag("lowest").over(by_time), F.lit(0.0)), F.col("before"))
    missing = bounded.withColumns({"start": F.col("before") - lowest_before, "missing": F.col("sum") - F.col("lowest")})
    return _with_debts(missing)


def _with_debts(missing: DataFrame) -> DataFrame:
    limit, burst = F.col("limit"), F.col("burst")
    start = F.when(F.col("goes_on"), F.greatest("start", "burst")).otherwise(F.col("start"))
    debts = missing.withColumns({"start": start, "peak": start + F.col("wanted_rise")})
    delay = (F.greatest("start", "peak") - burst) / limit
    left = F.greatest((F.col("missing") - burst) / limit, F.lit(0.0))
    left = F.when(left >= SHORTEST_DELAY, left).otherwise(0.0)
    return debts.select(
        "target",
        "at",
        "estimated",
        "recorded",
        F.greatest(delay, F.lit(0.0)).alias("delay"),
        F.when(delay >= SHORTEST_DELAY, _active_debt() + _idle_debt()).otherwise(0.0).alias("throttle_seconds"),
        F.least(left, "later_seconds").alias("catch_up_seconds"),
        F.greatest(left - F.col("later_seconds"), F.lit(0.0)).alias("behind_seconds"),
    )


def _active_debt() -> Column:
    """The active seconds in debt: from the time at which a rise reaches `burst`, or until a fall does."""
    start, rise, burst, seconds = (F.col(name) for name in ("start", "wanted_rise", "burst", "seconds"))
    rising = F.least(seconds * (F.col("peak") - burst) / rise, seconds)
    falling = F.least(seconds * (start - burst) / -rise, seconds)
    return F.greatest(F.when(rise > 0, rising).when(rise < 0, falling).when(start > burst, seconds), F.lit(0.0))


def _idle_debt() -> Column:
    """The seconds of the rest of the minute until the debt is paid."""
    debt = F.greatest(F.col("peak") - F.col("burst"), F.lit(0.0)) / F.col("limit")
    return F.least(debt, MINUTE_SECONDS - F.col("seconds"))


def totals(replay: DataFrame) -> DataFrame:
    """The figures of each target. A minute counts as throttled if a part of it is in debt."""
    throttled = F.col("throttle_seconds") > 0
    catching_up = F.ceil(F.col("catch_up_seconds") / MINUTE_SECONDS)
    return replay.groupBy("target").agg(
        F.count("*").alias("minutes"),
        F.count_if("estimated").alias("estimated_minutes"),
        F.count_if("recorded").alias("recorded_minutes"),
        (F.count_if(throttled) + F.sum(catching_up)).alias("throttled_minutes"),
        F.sum(catching_up).alias("catch_up_minutes"),
        F.round(F.sum(F.col("throttle_seconds") + F.col("catch_up_seconds")), 3).alias("throttle_seconds"),
        F.round(F.max("delay"), 3).alias("delay_max_seconds"),
        F.round(F.max_by("behind_seconds", "at"), 3).alias("behind_seconds"),
    )
