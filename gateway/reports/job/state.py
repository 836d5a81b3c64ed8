"""Stores the hourly aggregates, and records the hours that are done with their source files.

Under OUT/_state/LAYOUT, each table of `hours.py` is a Parquet folder partitioned by date and hour. So is `done`, the list of
source files of each hour. A run writes `done` last, with its id (`made_by`). Only rows with that id count, so an hour that a
run left unfinished counts as not done, and is aggregated again.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DateType, IntegerType, LongType, StringType, StructField, StructType

from gateway.reports.job.ledger import LedgerFile
from gateway.reports.job.period import Hour, Period

LAYOUT = "2"
"""The version of the tables' columns and their meaning."""

_DONE = StructType(
    [
        StructField("name", StringType()),
        StructField("length", LongType()),
        StructField("made_by", StringType()),
        StructField("events", LongType()),
        StructField("rejected", LongType()),
        StructField("date", DateType()),
        StructField("hour", IntegerType()),
    ]
)

_VALID = StructType([_DONE["date"], _DONE["hour"], _DONE["made_by"]])


@dataclass(frozen=True)
class DoneHour:
    """An hour with complete aggregates. `events` and `rejected` count its good and its bad lines."""

    made_by: str
    files: frozenset[LedgerFile]
    events: int
    rejected: int


class State:
    """The aggregates of all done hours under an output folder."""

    def __init__(self, spark: SparkSession, out: str) -> None:
        self._spark = spark
        self._root = f"{out}/_state/{LAYOUT}"

    def done(self, period: Period) -> Mapping[Hour, DoneHour]:
        try:
            rows = self._spark.read.schema(_DONE).parquet(f"{self._root}/done").where(period.contains()).collect()
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return {}
            raise
        files: dict[Hour, set[LedgerFile]] = defaultdict(set)
        for row in rows:
            files[row.date, row.hour].add(LedgerFile(row.name, row.length))
        return {
            (row.date, row.hour): DoneHour(row.made_by, frozenset(files[row.date, row.hour]), row.events, row.rejected)
            for row in rows
        }

    def write(self, name: str, rows: DataFrame, made_by: str) -> None:
        """Replace the hours that occur in `rows`."""
        _write_hours(rows.withColumn("made_by", F.lit(made_by)), f"{self._root}/{name}")

    def mark_done(self, hours: Mapping[Hour, DoneHour]) -> None:
        """Make the rows that these runs wrote valid."""
        rows = [
            (file.name, file.length, done.made_by, done.events, done.rejected, *hour)
            for hour, done in hours.items()
            for file in done.files
        ]
        _write_hours(_few_rows(self._spark, rows, _DONE), f"{self._root}/done")

    def read(self, name: str, hours: Mapping[Hour, DoneHour], like: StructType) -> DataFrame:
        """A table's rows of these hours. `like` is its schema, in case that no hour has rows."""
        period = Period(min(hours), max(hours)) if hours else Period()
        columns = StructType([*like.fields, StructField("made_by", StringType())])
        try:
            stored = self._spark.read.schema(columns).parquet(f"{self._root}/{name}")
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            return _few_rows(self._spark, [], like)
        valid = _few_rows(self._spark, [(*hour, done.made_by) for hour, done in hours.items()], _VALID)
        return stored.where(period.contains()).join(F.broadcast(valid), ["date", "hour", "made_by"]).drop("made_by")


def _few_rows(spark: SparkSession, rows: Sequence[Sequence[object]], schema: StructType) -> DataFrame:
    """Rows from the driver. createDataFrame would start Python on the executors, which need no Python otherwise."""
    text = json.dumps([dict(zip(schema.names, row, strict=True)) for row in rows], default=str)
    row = F.explode(F.from_json(F.lit(text), ArrayType(schema)))
    return spark.range(1).select(row.alias("row")).select("row.*")


def _write_hours(rows: DataFrame, path: str) -> None:
    _hour_writer(rows).parquet(path)


def write_rejected(rows: DataFrame, out: str) -> None:
    """Write the bad lines with file and reason as JSON lines under OUT/_rejected, partitioned by date and hour."""
    _hour_writer(rows).json(f"{out}/_rejected")


def _hour_writer(rows: DataFrame) -> DataFrameWriter:
    # One file for an hour, and more for a large hour.
    writer = rows.hint("rebalance", "date", "hour").write.mode("overwrite")
    return writer.option("partitionOverwriteMode", "dynamic").partitionBy("date", "hour")


def pending(files: Mapping[Hour, frozenset[LedgerFile]], done: Mapping[Hour, DoneHour]) -> Sequence[Hour]:
    """The hours with at least one file that their aggregates do not include.

    Deleted files do not count: the ledger deletes its oldest files, but their aggregates stay.
    """
    return sorted(hour for hour, found in files.items() if hour not in done or found - done[hour].files)


def batches(hours: Iterable[Hour], size: int) -> Sequence[Sequence[Hour]]:
    ordered = list(hours)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]
