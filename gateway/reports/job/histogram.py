"""Log-linear histograms as columns, the same as `gateway.events.throttle_slot`: counts that add up over hours and gateways."""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

BITS = 4
"""16 slots to each doubling: a slot is at most 6.25 % wide."""


def slot_of(value: Column | str) -> Column:
    """The slot of a whole number >= 0; exact below 32."""
    whole = (F.col(value) if isinstance(value, str) else value).cast("long")
    shift = (F.length(F.bin(whole)) - (BITS + 1)).cast("int")
    beyond = F.call_function("shiftleft", shift.cast("long"), F.lit(BITS)) + F.call_function("shiftright", whole, shift)
    return F.when(shift <= 0, whole).otherwise(beyond).cast("int")


def upper_of(slot: Column) -> Column:
    """The largest whole number that falls into a slot."""
    shift = F.call_function("shiftright", slot, F.lit(BITS)) - 1
    mantissa = slot - F.call_function("shiftleft", shift, F.lit(BITS)) + 1
    beyond = F.call_function("shiftleft", mantissa.cast("long"), shift) - 1
    return F.when(slot < 2 ** (BITS + 1), slot.cast("long")).otherwise(beyond)


def quantiles(counts: DataFrame, by: Sequence[str], wanted: Mapping[str, int]) -> DataFrame:
    """For each group the slots' upper ends at the wanted fractions (in thousandths): a column for each, nearest rank.

    `counts` has the columns `by`, `slot` and `count`, a row for each slot of a group.
    """
    group = Window.partitionBy(*by)
    # Added up before they are sorted: of many hours there are far more rows than slots.
    added_up = counts.groupBy(*by, "slot").agg(F.sum("count").alias("count"))
    ranked = added_up.withColumns(
        {
            "_below": F.sum("count").over(group.orderBy("slot")),
            "_all": F.sum("count").over(group),
            "_upper": upper_of(F.col("slot")),
        }
    )
    return ranked.groupBy(*by).agg(
        F.sum("count").alias("count"),
        *(
            F.min(F.when(F.col("_below") >= F.ceil(F.col("_all") * thousandths / 1000), F.col("_upper"))).alias(name)
            for name, thousandths in wanted.items()
        ),
    )
