"""The ledger's files: which there are for which hour, and their lines as events, the bad ones told apart."""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, StringType, StructField, StructType

from gateway.reports.job.hours import HOUR
from gateway.reports.job.period import Hour, Period
from gateway.reports.job.schema import field_columns, parsed, rejection

_FILES = "*.jsonl*"
"""gzip or plain; Spark itself passes over names that begin with a dot or an underscore."""
_LONGEST_KEPT = 10_000
"""Characters of a bad line that are kept."""


@dataclass(frozen=True)
class LedgerFile:
    """A file of an hour. Files never change, so name and length tell one from another."""

    name: str
    length: int


class Ledger:
    """The files under a path (of any Hadoop file system), laid out as `gateway.events` says."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path
        self._lines: DataFrame | None = None

    def files(self, period: Period) -> Mapping[Hour, frozenset[LedgerFile]]:
        """The files of each hour in the period. Only their names are looked at."""
        everything = self._spark.read.format("binaryFile").option("pathGlobFilter", _FILES).load(self._path)
        if not {*HOUR} <= {*everything.columns}:
            return {}  # no folders of dates and hours
        listed = everything.select("path", "length", F.col("date").cast("date"), F.col("hour").cast("int")).where(
            period.contains()
        )
        found: dict[Hour, set[LedgerFile]] = defaultdict(set)
        for row in listed.collect():
            found[row.date, row.hour].add(LedgerFile(row.path.rsplit("/", 1)[-1], row.length))
        return {hour: frozenset(files) for hour, files in found.items()}

    def lines(self, hours: Sequence[Hour]) -> DataFrame:
        """All lines of these hours: `date`, `hour`, the events' fields, and for bad ones why they are `rejected`."""
        return self._told(hours).select(*HOUR, *field_columns(F.col("event")), "rejected")

    def events_but_usage(self, hours: Sequence[Hour]) -> DataFrame:
        """The good events that are not usage samples. Most lines are usage samples, and those aren't even parsed."""
        others = ~F.contains(
            F.col("value"), F.lit('"type":"usage"')
        )  # as `to_line` writes it; another spelling costs time only
        good = self._told(hours, others).where(F.col("rejected").isNull() & (F.col("event.type") != "usage"))
        return good.select(*HOUR, *field_columns(F.col("event")))

    def bad_lines(self, hours: Sequence[Hour]) -> DataFrame:
        """The bad lines of these hours: `date`, `hour`, `file`, `reason` and the `line` itself."""
        bad = self._told(hours).where(F.col("rejected").isNotNull())
        return bad.select(*HOUR, "file", F.col("rejected").alias("reason"), F.left("value", F.lit(_LONGEST_KEPT)).alias("line"))

    def _told(self, hours: Sequence[Hour], which: Column | None = None) -> DataFrame:
        if self._lines is None:  # made once: it lists all folders
            columns = (("value", StringType()), ("date", DateType()), ("hour", IntegerType()))
            schema = StructType([StructField(name, of_type) for name, of_type in columns])
            self._lines = self._spark.read.schema(schema).option("pathGlobFilter", _FILES).text(self._path)
        lines = self._lines.where(_in(hours) & (F.trim("value") != ""))
        if which is not None:
            lines = lines.where(which)
        parsed_lines = lines.select(
            *HOUR, "value", F.col("_metadata.file_name").alias("file"), parsed(F.col("value")).alias("event")
        )
        return parsed_lines.withColumn("rejected", rejection(F.col("event"), F.col("date"), F.col("hour")))


def _in(hours: Iterable[Hour]) -> Column:
    by_date: dict[dt.date, list[int]] = defaultdict(list)
    for date, hour in hours:
        by_date[date].append(hour)
    return reduce(
        Column.__or__,
        ((F.col("date") == date) & F.col("hour").isin(of_day) for date, of_day in by_date.items()),
        F.lit(False),
    )
