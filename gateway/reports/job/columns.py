"""Columns that several reports have."""

from pyspark.sql import Column
from pyspark.sql import functions as F


def moment(milliseconds: str) -> Column:
    """A time as a timestamp (UTC)."""
    return F.timestamp_millis(F.col(milliseconds))


def ratio(part: Column | str, whole: Column | str) -> Column:
    """part / whole, rounded to four places; null where there is no whole."""
    part, whole = (F.col(one) if isinstance(one, str) else one for one in (part, whole))
    return F.round(part / F.when(whole > 0, whole), 4)


def count(column: Column | str) -> Column:
    """A sum of counts: whole, and 0 where there was nothing to add up."""
    name = F.col(column) if isinstance(column, str) else column
    return F.coalesce(name.cast("long"), F.lit(0))
