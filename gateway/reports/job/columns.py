"""Spark columns that several reports use: times, ratios, counts, and log-linear histograms.

The histograms have the slots of `gateway.throttle_slots`. Their counts can be added over hours and gateways.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

BITS = 4
"""Each doubling has 16 slots, so a slot is at most 6.25 % wide."""


def moment(milliseconds: str) -> Column:
    """A column of ms since 1970 as a timestamp (UTC)."""
    return F.timestamp_millis(F.col(milliseconds))


def minute_since_1970() -> Column:
    """Of a row with `date`, `hour` and `minute`."""
    return hour_since_1970() * 60 + F.col("minute")


def hour_since_1970() -> Column:
    """Of a row with `date` and `hour`."""
    return F.unix_date("date").cast("long") * 24 + F.col("hour")


def ratio(part: Column | str, whole: Column | str) -> Column:
    """part / whole, rounded to four places; null if `whole` is 0 or null."""
    part, whole = (F.col(one) if isinstance(one, str) else one for one in (part, whole))
    return F.round(part / F.when(whole > 0, whole), 4)


def count(column: str) -> Column:
    """A sum of counts as a whole number; 0 for null."""
    return F.coalesce(F.col(column).cast("long"), F.lit(0))


def slot_of(value: Column | str) -> Column:
    """The slot of a whole number >= 0. Below 32, every number has a slot of its own."""
    whole = (F.col(value) if isinstance(value, str) else value).cast("long")
    shift = (F.length(F.bin(whole)) - (BITS + 1)).cast("int")
    beyond = F.call_function("shiftleft", shift.cast("long"), F.lit(BITS)) + F.call_function("shiftright", whole, shift)
    return F.when(shift <= 0, whole).otherwise(beyond).cast("int")


def upper_of(slot: Column) -> Column:
    """The largest whole number in a slot."""
    shift = F.call_function("shiftright", slot, F.lit(BITS)) - 1
    mantissa = slot - F.call_function("shiftleft", shift, F.lit(BITS)) + 1
    beyond = F.call_function("shiftleft", mantissa.cast("long"), shift) - 1
    return F.when(slot < 2 ** (BITS + 1), slot.cast("long")).otherwise(beyond)


def quantiles(counts: DataFrame, by: Sequence[str], thousandths: Mapping[str, int]) -> DataFrame:
    """For each group, a column for every wanted quantile (in thousandths): the upper end of its slot, by nearest rank.

    `counts` has the columns `by`, `slot` and `count`, one row for each slot of a group.
    """
    group = Window.partitionBy(*by)
    # Summed before the sort: many batches have far more rows than slots. One shuffle serves the sums and the sort.
    summed = counts.repartition(*by).groupBy(*by, "slot").agg(F.sum("count").alias("count"))
    ranked = summed.withColumns(
        {
            "_below": F.sum("count").over(group.orderBy("slot")),
            "_all": F.sum("count").over(group),
            "_upper": upper_of(F.col("slot")),
        }
    )
    return ranked.groupBy(*by).agg(
        F.sum("count").alias("count"),
        *(
            F.min(F.when(F.col("_below") >= F.ceil(F.col("_all") * wanted / 1000), F.col("_upper"))).alias(name)
            for name, wanted in thousandths.items()
        ),
    )
