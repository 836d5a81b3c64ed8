"""Stores the hourly aggregates and the roll-ups of days, and records the hours that are done with their source files.

Each batch of hours is one folder under OUT/_state/LAYOUT with the Parquet tables of `hours.py`. When a folder is complete, a
file in `done` names it, its hours and their source files. The last such file with an hour has that hour's folder. So a batch
that a run left unfinished counts as not done, and its hours are aggregated again.

The roll-up of a day is one more folder. Its mark names the batches of the day's hours: if one of them is replaced, the
roll-up no longer counts.
"""

import datetime as dt
import json
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from gateway.reports.job.hadoop import HadoopFolder
from gateway.reports.job.ledger import LedgerFile, in_hours
from gateway.reports.job.period import Hour, Period

LAYOUT = "9"
"""The version of the tables' columns and their meaning."""

MARKS = 100
"""With more files in `done`, a run merges them."""
_HOURS = 24
UNUSED_SECONDS = 86_400.0
"""A folder that no mark needs is deleted at this age."""

_BATCH, _DAY = "batch-", "day-"
_TABLE = "table"
"""The column with a row's table: the tables of a batch are written by one Spark job."""


class OldLayoutError(Exception):
    """The output folder has the aggregates of another version. The message says what to do."""


@dataclass(frozen=True)
class DoneHour:
    """An hour with complete aggregates in the folder `batch`. `events` and `rejected` count its good and its bad lines."""

    batch: str
    files: frozenset[LedgerFile]
    events: int
    rejected: int


@dataclass
class _Batch:
    """A complete folder: its tables with rows, and all of its hours, also those that a later batch replaced."""

    stored: set[str]
    hours: dict[Hour, DoneHour]


@dataclass(frozen=True)
class _Day:
    """The complete folder of a day's roll-up, its tables with rows, and the batch of each of the day's hours."""

    folder: str
    stored: set[str]
    batches: Mapping[int, str]


class State:
    """The aggregates of all done hours under an output folder."""

    def __init__(self, spark: SparkSession, out: str) -> None:
        self._spark = spark
        self._root = f"{out}/_state/{LAYOUT}"
        self._folder = HadoopFolder(spark, self._root)
        self._marks = HadoopFolder(spark, f"{self._root}/done")
        self._layouts = HadoopFolder(spark, f"{out}/_state")
        self._schemas: dict[str, StructType] = {}
        self._batches: dict[str, _Batch] = {}
        self._done: dict[Hour, DoneHour] = {}
        self._batch_of: dict[dt.date, dict[int, str]] = defaultdict(dict)
        self._days: dict[dt.date, _Day] = {}

    def load(self) -> None:
        """Find the done hours, and delete the folders of unfinished and replaced batches. Raises `OldLayoutError`."""
        layouts = [name for name in self._layouts.names() if name.isdigit()]
        if layouts and LAYOUT not in layouts:
            path = self._root.removesuffix(f"/{LAYOUT}")
            raise OldLayoutError(
                f"{path} has aggregates of another version of weir report (layout {layouts[-1]}; this version needs {LAYOUT}). "
                f"Give --out another folder, or move {path} away; then all hours that the ledger still has are read again"
            )
        marks = self._mark_names()
        for name in marks:
            self._add(json.loads(self._marks.read(name)))
        days = {date: day for date, day in self._days.items() if self._is_rolled_up(date)}
        used = {done.batch for done in self._done.values()} | {day.folder for day in days.values()}
        if len(marks) > MARKS:
            self._mark({batch: self._batches[batch] for batch in self._batches if batch in used}, days)
            for name in marks:
                self._marks.delete(name)
        # Another run may still write or read younger folders.
        old = (time.time() - UNUSED_SECONDS) * 1000
        for name, modified_ms in self._folder.modified().items():
            if name.startswith((_BATCH, _DAY)) and name not in used and modified_ms < old:
                self._folder.delete(name)

    def done(self, period: Period) -> Mapping[Hour, DoneHour]:
        return {hour: done for hour, done in self._done.items() if period.includes(hour)}

    def begin(self) -> str:
        """The name of a new batch."""
        return f"{_BATCH}{uuid.uuid4().hex}"

    def write(self, batch: str, name: str, rows: DataFrame) -> DataFrame:
        """Write one table of a batch and return its stored rows."""
        path = f"{self._root}/{batch}/{_TABLE}={name}"
        rows.write.mode("overwrite").parquet(path)
        return self._spark.read.schema(rows.schema).parquet(path)

    def write_all(self, batch: str, tables: Mapping[str, DataFrame]) -> None:
        """Write the other tables of a batch as one Spark job, so that the tables share its scans and no core waits."""
        types = {field.name: field.dataType for rows in tables.values() for field in rows.schema}
        every = [
            rows.select(
                F.lit(name).alias(_TABLE),
                *(
                    F.col(column) if column in rows.columns else F.lit(None).cast(of).alias(column)
                    for column, of in types.items()
                ),
            )
            for name, rows in tables.items()
        ]
        union = reduce(DataFrame.unionAll, every)
        union.write.mode("append").partitionBy(_TABLE).parquet(f"{self._root}/{batch}")

    def mark_done(self, hours: Mapping[Hour, DoneHour], schemas: Mapping[str, StructType]) -> None:
        """Make the tables of a batch valid. All `hours` are of one batch."""
        (batch,) = {done.batch for done in hours.values()}
        self._schemas |= schemas
        self._mark({batch: _Batch(self._stored(batch), dict(hours))}, {})

    def write_day(self, date: dt.date, tables: Mapping[str, DataFrame]) -> None:
        """Write the roll-up of all done hours of a day, and make it valid."""
        folder = f"{_DAY}{uuid.uuid4().hex}"
        self.write_all(folder, tables)
        self._schemas |= {name: rows.schema for name, rows in tables.items()}
        self._mark({}, {date: _Day(folder, self._stored(folder), dict(self._batch_of[date]))})

    def _stored(self, folder: str) -> set[str]:
        names = HadoopFolder(self._spark, f"{self._root}/{folder}").names()
        return {name.removeprefix(f"{_TABLE}=") for name in names} & self._schemas.keys()

    def _mark_names(self) -> Sequence[str]:
        return [name for name in self._marks.names() if name[0].isdigit()]

    def _mark(self, batches: Mapping[str, _Batch], days: Mapping[dt.date, _Day]) -> None:
        mark = {
            "schemas": {name: schema.jsonValue() for name, schema in self._schemas.items()},
            "batches": [
                {
                    "batch": name,
                    "stored": sorted(batch.stored),
                    "hours": [
                        {
                            "date": hour[0].isoformat(),
                            "hour": hour[1],
                            "events": done.events,
                            "rejected": done.rejected,
                            "files": [[file.name, file.length] for file in sorted(done.files, key=lambda file: file.name)],
                        }
                        for hour, done in sorted(batch.hours.items())
                    ],
                }
                for name, batch in batches.items()
            ],
            "days": [
                {
                    "date": date.isoformat(),
                    "folder": day.folder,
                    "stored": sorted(day.stored),
                    "batches": sorted(day.batches.items()),
                }
                for date, day in days.items()
            ],
        }
        number = max((int(name.partition(".")[0]) for name in self._mark_names()), default=0) + 1
        self._marks.add(f"{number:09d}.json", json.dumps(mark))
        self._add(mark)

    def _add(self, mark: Mapping[str, Any]) -> None:
        self._schemas |= {name: StructType.fromJson(schema) for name, schema in mark["schemas"].items()}
        for one in mark["batches"]:
            hours = {
                (dt.date.fromisoformat(each["date"]), each["hour"]): DoneHour(
                    one["batch"],
                    frozenset(LedgerFile(name, length) for name, length in each["files"]),
                    each["events"],
                    each["rejected"],
                )
                for each in one["hours"]
            }
            self._batches[one["batch"]] = _Batch(set(one["stored"]), hours)
            self._done |= hours
            for date, hour in hours:
                self._batch_of[date][hour] = one["batch"]
        for day in mark["days"]:
            self._days[dt.date.fromisoformat(day["date"])] = _Day(day["folder"], set(day["stored"]), dict(day["batches"]))

    def _is_rolled_up(self, date: dt.date) -> bool:
        return date in self._days and self._days[date].batches == self._batch_of[date]

    def whole_days(self, hours: Mapping[Hour, DoneHour]) -> Mapping[dt.date, bool]:
        """The days with all their done hours in `hours`, and if their roll-up is valid."""
        dates = sorted({date for date, _ in hours})
        return {date: self._is_rolled_up(date) for date in dates if all((date, hour) in hours for hour in self._batch_of[date])}

    def is_over(self, date: dt.date) -> bool:
        """True for a day with 24 done hours, or if a later day has begun."""
        return len(self._batch_of[date]) == _HOURS or date < max(self._batch_of)

    def read_days(self, name: str, dates: Iterable[dt.date]) -> DataFrame:
        """A table's rows in the roll-ups of some days."""
        days = [self._days[date] for date in dates]
        folders = [day.folder for day in days if name in day.stored]
        return self._rows(folders, name, self._schemas[name]) if folders else self._no_rows(self._schemas[name])

    def in_whole_batches(self, hours: Mapping[Hour, DoneHour]) -> Mapping[Hour, DoneHour]:
        """Those of the hours whose batch has no other hour, not even one that a later batch replaced."""
        wanted: dict[str, set[Hour]] = defaultdict(set)
        for hour, done in hours.items():
            wanted[done.batch].add(hour)
        return {hour: done for hour, done in hours.items() if wanted[done.batch] == self._batches[done.batch].hours.keys()}

    def read(self, name: str, hours: Mapping[Hour, DoneHour]) -> DataFrame:
        """A table's rows of these hours."""
        schema = self._schemas[name]
        wanted: dict[str, set[Hour]] = defaultdict(set)
        for hour, done in hours.items():
            if name in self._batches[done.batch].stored:
                wanted[done.batch].add(hour)
        # The dictionaries and `rates` have no hours.
        part = [batch for batch in wanted if "date" in schema.names and wanted[batch] != self._batches[batch].hours.keys()]
        whole = [batch for batch in wanted if batch not in part]
        rows = [self._rows([batch], name, schema).where(in_hours(wanted[batch])) for batch in part]
        if whole:
            rows.append(self._rows(whole, name, schema))
        return reduce(DataFrame.unionAll, rows) if rows else self._no_rows(schema)

    def _rows(self, folders: Sequence[str], name: str, schema: StructType) -> DataFrame:
        return self._spark.read.schema(schema).parquet(*(f"{self._root}/{folder}/{_TABLE}={name}" for folder in folders))

    def _no_rows(self, schema: StructType) -> DataFrame:
        return (
            self._spark.range(0)
            .where(F.lit(False))
            .select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in schema))
        )


def write_rejected(rows: DataFrame, out: str) -> None:
    """Write the bad lines with file and reason as JSON lines under OUT/_rejected, partitioned by date and hour."""
    # One file for an hour, and more for a large hour.
    writer = rows.hint("rebalance", "date", "hour").write.mode("overwrite")
    writer.option("partitionOverwriteMode", "dynamic").partitionBy("date", "hour").json(f"{out}/_rejected")


def pending(files: Mapping[Hour, frozenset[LedgerFile]], done: Mapping[Hour, DoneHour]) -> Sequence[Hour]:
    """The hours with at least one file that their aggregates do not include.

    Deleted files do not count: the ledger deletes its oldest files, but their aggregates stay.
    """
    return sorted(hour for hour, found in files.items() if hour not in done or found - done[hour].files)


def batches(hours: Iterable[Hour], size: int) -> Sequence[Sequence[Hour]]:
    ordered = list(hours)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]
