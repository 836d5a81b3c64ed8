"""Stores the hourly aggregates and the roll-ups of days, and records the hours that are done with their source files.

Each batch of hours is one folder under OUT/_state/LAYOUT with the Parquet tables of `hours.py`. When a folder is complete, a
file in `done` names it, its hours and their source files. The last such file with an hour has that hour's folder. So a batch
that a run left unfinished counts as not done, and its hours are aggregated again.

The roll-up of some days is one more folder. Its mark names the batches of each day's hours: if one of them is replaced, the
roll-up no longer counts for that day.
"""

import datetime as dt
import json
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from gateway.reports.job.folders import folder
from gateway.reports.job.hadoop import literal
from gateway.reports.job.ledger import LedgerFile, in_hours
from gateway.reports.job.period import Hour, Period

LAYOUT = "12"
"""The version of the tables' columns and their meaning."""

MARKS = 100
"""With more files in `done`, a run merges them."""
_HOURS = 24
UNUSED_SECONDS = 86_400.0
"""A folder that no mark needs is deleted at this age."""

_BATCH, _DAYS = "batch-", "days-"
_TABLE = "table"
"""The column with a row's table: the tables of a batch are written by one Spark job."""


class StateError(Exception):
    """The aggregates in the output folder are of another version, or unreadable. The message says what to do."""


@dataclass(frozen=True)
class DoneHour:
    """An hour with complete aggregates in the folder `batch`. `events` and `rejected` count its good and its bad lines.

    The rest of the files in `unreadable` is left out.
    """

    batch: str
    files: frozenset[LedgerFile]
    events: int
    rejected: int
    unreadable: frozenset[str] = frozenset()


@dataclass
class _Batch:
    """A complete folder: its tables with rows, and all of its hours, also those that a later batch replaced."""

    stored: set[str]
    hours: dict[Hour, DoneHour]


@dataclass(frozen=True)
class _RollUp:
    """The complete folder of the roll-up of some days, its tables with rows, and the batch of each hour of its days."""

    folder: str
    stored: set[str]
    batches: Mapping[dt.date, Mapping[int, str]]


class State:
    """The aggregates of all done hours under an output folder."""

    def __init__(self, spark: SparkSession, out: str) -> None:
        self._spark = spark
        self._root = f"{out}/_state/{LAYOUT}"
        self._folder = folder(spark, self._root)
        self._marks = folder(spark, f"{self._root}/done")
        self._layouts = folder(spark, f"{out}/_state")
        self._schemas: dict[str, StructType] = {}
        self._batches: dict[str, _Batch] = {}
        self._done: dict[Hour, DoneHour] = {}
        self._batch_of: dict[dt.date, dict[int, str]] = defaultdict(dict)
        self._roll_ups: dict[dt.date, _RollUp] = {}

    def load(self) -> None:
        """Find the done hours, and delete the folders of unfinished and replaced batches. Raises `StateError`."""
        layouts = [name for name in self._layouts.names() if name.isdigit()]
        if layouts and LAYOUT not in layouts:
            path = self._root.removesuffix(f"/{LAYOUT}")
            raise StateError(
                f"{path} has aggregates of another version of weir report (layout {layouts[-1]}; this version needs {LAYOUT}). "
                f"Give --out another folder, or move {path} away; then all hours that the ledger still has are read again"
            )
        marks = self._mark_names()
        for name in marks:
            try:
                self._add(json.loads(self._marks.read(name)))
            except (ValueError, LookupError, TypeError) as error:
                raise StateError(
                    f"{self._root}/done/{name} is no mark of finished hours: {error!r}. "
                    "Move it away; then its hours that the ledger still has are read again"
                ) from error
        roll_ups = {self._roll_ups[date].folder: self._roll_ups[date] for date in self._roll_ups if self._is_rolled_up(date)}
        used = {done.batch for done in self._done.values()} | roll_ups.keys()
        if len(marks) > MARKS:
            self._mark({batch: self._batches[batch] for batch in self._batches if batch in used}, roll_ups.values())
            for name in marks:
                self._marks.delete(name)
        # Another run may still write or read younger folders.
        old = (time.time() - UNUSED_SECONDS) * 1000
        for name, modified_ms in self._folder.modified().items():
            if name.startswith((_BATCH, _DAYS)) and name not in used and modified_ms < old:
                self._folder.delete(name)

    def within(self, spark: SparkSession) -> "State":
        """The same aggregates for the queries of another session."""
        other = copy(self)
        other._spark = spark
        return other

    def done(self, period: Period) -> Mapping[Hour, DoneHour]:
        return {hour: done for hour, done in self._done.items() if period.includes(hour)}

    def begin(self) -> str:
        """The name of a new batch."""
        return f"{_BATCH}{uuid.uuid4().hex}"

    def expected(self, batch: str, name: str, schema: StructType) -> DataFrame:
        """The rows of a table that a batch will have. It has them after `write` and `refresh`."""
        self._folder.add_folder(f"{batch}/{_TABLE}={name}")
        return self._spark.read.schema(schema).parquet(literal(f"{self._root}/{batch}/{_TABLE}={name}"))

    def refresh(self, expected: DataFrame) -> None:
        """List the files of a table that `write` has written."""
        relation: Any = expected
        relation._jdf.queryExecution().analyzed().relation().location().refresh()

    def write(self, batch: str, name: str, rows: DataFrame) -> None:
        """Write one table of a batch."""
        rows.write.mode("overwrite").parquet(f"{self._root}/{batch}/{_TABLE}={name}")

    def write_all(self, batch: str, tables: Mapping[str, DataFrame]) -> None:
        """Write the other tables of a batch as one Spark job, so that the tables share its scans and no core waits."""
        types = {field.name: field.dataType for rows in tables.values() for field in rows.schema}
        # Each is made once, and not for each table: PySpark needs many calls for them.
        own = {column: F.col(column) for column in types}
        absent = {column: F.lit(None).cast(of).alias(column) for column, of in types.items()}
        every = [
            rows.select(F.lit(name).alias(_TABLE), *((own if column in rows.columns else absent)[column] for column in types))
            for name, rows in tables.items()
        ]
        union = reduce(DataFrame.unionAll, every)
        union.write.mode("append").partitionBy(_TABLE).parquet(f"{self._root}/{batch}")

    def mark_done(self, hours: Mapping[Hour, DoneHour], schemas: Mapping[str, StructType]) -> None:
        """Make the tables of a batch valid. All `hours` are of one batch."""
        (batch,) = {done.batch for done in hours.values()}
        self._schemas |= schemas
        self._mark({batch: _Batch(self._stored(batch), dict(hours))}, [])

    def write_days(self, dates: Iterable[dt.date], tables: Mapping[str, DataFrame]) -> None:
        """Write the roll-up of all done hours of some days, and make it valid."""
        name = f"{_DAYS}{uuid.uuid4().hex}"
        self.write_all(name, tables)
        self._schemas |= {name: rows.schema for name, rows in tables.items()}
        self._mark({}, [_RollUp(name, self._stored(name), {date: dict(self._batch_of[date]) for date in dates})])

    def _stored(self, name: str) -> set[str]:
        names = folder(self._spark, f"{self._root}/{name}").names()
        return {name.removeprefix(f"{_TABLE}=") for name in names} & self._schemas.keys()

    def _mark_names(self) -> Sequence[str]:
        return [name for name in self._marks.names() if name[0].isdigit()]

    def _mark(self, batches: Mapping[str, _Batch], roll_ups: Iterable[_RollUp]) -> None:
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
                            "unreadable": sorted(done.unreadable),
                            "files": [[file.name, file.length] for file in sorted(done.files, key=lambda file: file.name)],
                        }
                        for hour, done in sorted(batch.hours.items())
                    ],
                }
                for name, batch in batches.items()
            ],
            "roll_ups": [
                {
                    "folder": roll_up.folder,
                    "stored": sorted(roll_up.stored),
                    "days": [
                        {"date": date.isoformat(), "batches": sorted(of_day.items())}
                        for date, of_day in sorted(roll_up.batches.items())
                    ],
                }
                for roll_up in roll_ups
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
                    frozenset(each.get("unreadable", ())),
                )
                for each in one["hours"]
            }
            self._batches[one["batch"]] = _Batch(set(one["stored"]), hours)
            self._done |= hours
            for date, hour in hours:
                self._batch_of[date][hour] = one["batch"]
        for one in mark["roll_ups"]:
            batches = {dt.date.fromisoformat(day["date"]): dict(day["batches"]) for day in one["days"]}
            self._roll_ups |= dict.fromkeys(batches, _RollUp(one["folder"], set(one["stored"]), batches))

    def _is_rolled_up(self, date: dt.date) -> bool:
        return date in self._roll_ups and self._roll_ups[date].batches[date] == self._batch_of[date]

    def whole_days(self, hours: Mapping[Hour, DoneHour]) -> Mapping[dt.date, bool]:
        """The days with all their done hours in `hours`, and if their roll-up is valid."""
        dates = sorted({date for date, _ in hours})
        return {date: self._is_rolled_up(date) for date in dates if all((date, hour) in hours for hour in self._batch_of[date])}

    def in_whole_roll_ups(self, dates: Iterable[dt.date]) -> Sequence[dt.date]:
        """Those of the days whose roll-up is valid for all of its days, and has none but `dates`."""
        wanted = {date for date in dates if self._is_rolled_up(date)}
        others = {date: self._roll_ups[date].batches.keys() for date in wanted}
        return [
            date
            for date in sorted(wanted)
            if all(other in wanted and self._roll_ups[other] is self._roll_ups[date] for other in others[date])
        ]

    def is_over(self, date: dt.date) -> bool:
        """True for a day with 24 done hours, or if a later day has begun."""
        return len(self._batch_of[date]) == _HOURS or date < max(self._batch_of)

    def read_days(self, name: str, dates: Iterable[dt.date]) -> DataFrame:
        """A table's rows in the roll-ups of some days. Rows without dates are those of the whole roll-ups."""
        wanted: dict[str, set[dt.date]] = defaultdict(set)
        every: dict[str, Iterable[dt.date]] = {}
        for date in dates:
            roll_up = self._roll_ups[date]
            if name in roll_up.stored:
                wanted[roll_up.folder].add(date)
                every[roll_up.folder] = roll_up.batches.keys()
        return self._parts(
            name,
            {
                (name_of,): None if some == every[name_of] else F.col("date").isin(sorted(some))
                for name_of, some in wanted.items()
            },
        )

    def in_whole_batches(self, hours: Mapping[Hour, DoneHour]) -> Mapping[Hour, DoneHour]:
        """Those of the hours whose batch has no other hour, not even one that a later batch replaced."""
        wanted: dict[str, set[Hour]] = defaultdict(set)
        for hour, done in hours.items():
            wanted[done.batch].add(hour)
        return {hour: done for hour, done in hours.items() if wanted[done.batch] == self._batches[done.batch].hours.keys()}

    def read(self, name: str, hours: Mapping[Hour, DoneHour]) -> DataFrame:
        """A table's rows of these hours."""
        wanted: dict[str, set[Hour]] = defaultdict(set)
        for hour, done in hours.items():
            if name in self._batches[done.batch].stored:
                wanted[done.batch].add(hour)
        every = {batch: self._batches[batch].hours.keys() for batch in wanted}
        part = [batch for batch in wanted if wanted[batch] != every[batch]]
        replaced = [batch for batch in part if any(self._done[hour].batch != batch for hour in every[batch])]
        # One scan reads all batches without replaced hours: each row of a wanted hour counts.
        current = tuple(batch for batch in part if batch not in replaced)
        groups = [*((batch,) for batch in replaced), *([current] if current else [])]
        return self._parts(
            name,
            {(batch,): None for batch in wanted if batch not in part}
            | {group: in_hours(hour for batch in group for hour in wanted[batch]) for group in groups},
        )

    def _parts(self, name: str, parts: Mapping[tuple[str, ...], Column | None]) -> DataFrame:
        """A table's rows in some folders: those of a condition on dates and hours, or all rows."""
        schema = self._schemas[name]
        # The dictionaries and `rates` have no hours.
        part = {folders: those for folders, those in parts.items() if those is not None and "date" in schema.names}
        whole = [folder for folders in parts if folders not in part for folder in folders]
        rows = [self._rows(folders, name, schema).where(those) for folders, those in part.items()]
        if whole:
            rows.append(self._rows(whole, name, schema))
        return reduce(DataFrame.unionAll, rows) if rows else self._no_rows(schema)

    def _rows(self, folders: Sequence[str], name: str, schema: StructType) -> DataFrame:
        paths = [literal(f"{self._root}/{folder}/{_TABLE}={name}") for folder in folders]
        return self._spark.read.schema(schema).parquet(*paths)

    def _no_rows(self, schema: StructType) -> DataFrame:
        nothing = F.lit(None).cast(schema).alias("row")
        return self._spark.range(0).where(F.lit(False)).select(nothing).select("row.*")


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


def missing(files: Mapping[Hour, frozenset[LedgerFile]], done: Mapping[Hour, DoneHour]) -> Mapping[Hour, Sequence[str]]:
    """The hours with new files whose aggregates include files that are gone, and the names of the latter.

    New aggregates would lack the lines of these files. A file in `unreadable` does not count: the user may have moved it away.
    """
    gone = {
        hour: {file.name for file in done[hour].files} - done[hour].unreadable - {file.name for file in files[hour]}
        for hour in pending(files, done)
        if hour in done
    }
    return {hour: sorted(names) for hour, names in gone.items() if names}


def batches(hours: Iterable[Hour], size: int) -> Sequence[Sequence[Hour]]:
    ordered = list(hours)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]
