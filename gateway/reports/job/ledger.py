"""The ledger's files: which there are for which hour, and their lines as events, the bad ones told apart."""

import datetime as dt
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, StringType, StructField, StructType

from gateway.reports.job.hours import HOUR
from gateway.reports.job.period import Hour, Period
from gateway.reports.job.schema import field_columns, parsed, rejection

_FILES = "*.jsonl*"
"""gzip or plain; Spark itself passes over names that begin with a dot or an underscore."""
_PLACE = re.compile(r".*/date=(?P<date>\d{4}-\d\d-\d\d)/hour=(?P<hour>\d{1,2})/(?P<name>[^/._][^/]*)")
_LONGEST_KEPT = 10_000
"""Characters of a bad line that are kept."""


class NoSuchPathError(Exception):
    """There is nothing at the ledger's path."""


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
        """The files of each hour in the period. Only their names are looked at. Raises NoSuchPathError."""
        java: Any = self._spark.sparkContext
        # Java lists them itself: a job of Spark's takes seconds to begin.
        paths = java._jvm.org.apache.hadoop.fs
        root = paths.Path(self._path)
        file_system = root.getFileSystem(java._jsc.hadoopConfiguration())
        if not file_system.exists(root):
            raise NoSuchPathError(self._path)
        found: dict[Hour, set[LedgerFile]] = defaultdict(set)
        for status in file_system.globStatus(paths.Path(root, f"date=*/hour=*/{_FILES}")):
            place = _PLACE.fullmatch(status.getPath().toString())
            if place is None:
                continue
            hour = dt.date.fromisoformat(place["date"]), int(place["hour"])
            if period.includes(hour):
                found[hour].add(LedgerFile(place["name"], status.getLen()))
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
        # From a generator, for what is asked of the event is then not asked before it: Spark would put the parser in place of
        # the column in every condition on it, and parse each line some fifty times.
        event = F.explode(F.array(parsed(F.col("value")))).alias("event")
        parsed_lines = lines.select(*HOUR, "value", F.col("_metadata.file_name").alias("file"), event)
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
