"""Lists the ledger's files by hour, and reads their lines as events or bad lines."""

import datetime as dt
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, StringType, StructField, StructType

from gateway.reports.job.folders import folder
from gateway.reports.job.hadoop import literal
from gateway.reports.job.hours import HOUR
from gateway.reports.job.period import Hour, Period
from gateway.reports.job.schema import CORRUPT, EVENT_SCHEMA, NO_JSON, field_columns, parsed, rejection

_SUFFIXES = (".jsonl", ".jsonl.gz")
_FILES = f"*{{{','.join(_SUFFIXES)}}}"
"""gzip or plain text. Spark skips names that begin with a dot or an underscore; a copy under way has a further suffix."""
_PLACE = re.compile(r".*/date=(?P<date>\d{4}-\d\d-\d\d)/hour=(?P<hour>\d{1,2})/[^/._][^/]*")
_FOLDER = [StructField("date", DateType()), StructField("hour", IntegerType())]
"""The columns that Spark makes from the folders' names."""
_Read = Callable[[DataFrameReader], Callable[[list[str]], DataFrame]]
_LONGEST_KEPT = 10_000
"""The limit on the characters that are stored of a bad line."""


class NoSuchPathError(Exception):
    """The ledger's path does not exist."""


@dataclass(frozen=True)
class LedgerFile:
    """A file of an hour. Files never change, so name and length identify one."""

    name: str
    length: int


def hour_of(file: str) -> Hour | None:
    """The hour of a ledger's file from its whole path; None for any other file, or if there is no such hour."""
    place = _PLACE.fullmatch(file)
    if place is None:
        return None
    try:
        moment = dt.datetime.fromisoformat(f"{place['date']}T{place['hour']:0>2}")
    except ValueError:
        return None
    return moment.date(), moment.hour


class LedgerFolder:
    """The files under a path of any Hadoop file system, in the layout of `gateway.ledger_paths`.

    An hour may have two folders: `hour=07` and `hour=7`. A file that both have under one name and length counts once.
    Of the files in `unreadable`, only the lines before their fault are read, or none if the file can't be opened. All others
    raise if they have a fault.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path
        self._folders: dict[Hour, dict[str, str]] = defaultdict(dict)  # by name of the file
        self.unreadable: dict[Hour, set[str]] = defaultdict(set)
        self._closed: set[tuple[Hour, str]] = set()

    def files(self, period: Period) -> Mapping[Hour, frozenset[LedgerFile]]:
        """The files of each hour in the period; reads only their names. Raises `NoSuchPathError`.

        Files that Spark can't read are in `unreadable` as well: their names are not UTF-8, or those of other files of the hour.
        """
        root = folder(self._spark, self._path)
        if not root.exists():
            raise NoSuchPathError(self._path)
        found: dict[Hour, set[LedgerFile]] = defaultdict(set)
        for suffix in _SUFFIXES:
            for file, length in sorted(root.lengths(f"date=*/hour=*/*{suffix}").items()):
                hour = hour_of(file)
                if hour is None or not period.includes(hour):
                    continue
                of_hour, _, name = file.rpartition("/")
                is_other = self._folders[hour].setdefault(name, of_hour) != of_hour
                if is_other and LedgerFile(name, length) in found[hour]:
                    continue
                if is_other or shown_name(name) != name:
                    name = f"{of_hour.rpartition('/')[2]}/{name}" if is_other else name
                    self.unreadable[hour].add(name)
                    self._closed.add((hour, name))
                found[hour].add(LedgerFile(name, length))
        return {hour: frozenset(files) for hour, files in found.items()}

    def skip(self, error: BaseException) -> str | None:
        """Add the file that Spark could not read to `unreadable`. If it is there already, leave it out as a whole.

        Returns the file's name, None if it is left out already or if there is no such file.
        """
        path = unquote(unreadable_path(error) or "")
        hour, name = hour_of(path), path.rpartition("/")[2]
        if hour not in self._folders or (hour, name) in self._closed:
            return None
        if name in self.unreadable[hour]:  # Spark ignores faults of the content, but not a missing right to read
            self._closed.add((hour, name))
        self.unreadable[hour].add(name)
        return name

    def lines(self, hours: Sequence[Hour]) -> DataFrame:
        """All lines of these hours: `date`, `hour`, the event's fields, and the reason in `rejected` for a bad line.

        `hours` are some of those that `files` returned last, at least one.
        """
        # Spark's JSON source parses a line in half the time of `from_json` on the text.
        schema = StructType([*EVENT_SCHEMA.fields, *_FOLDER])
        rows = self._rows(hours, lambda reader: reader.schema(schema).option("columnNameOfCorruptRecord", CORRUPT).json)
        # Comparisons with a column that may be null take several times as much generated code.
        rows = rows.withColumn("type", F.coalesce("type", F.lit("")))
        return rows.select(*HOUR, *field_columns(F.col), rejection(F.col, F.col("date"), F.col("hour")).alias("rejected"))

    def bad_lines(self, hours: Sequence[Hour]) -> DataFrame:
        """The bad lines of these hours: `date`, `hour`, `file`, `reason` and the `line` itself."""
        bad = self._parsed(hours).where(F.col("rejected").isNotNull())
        return bad.select(*HOUR, "file", F.col("rejected").alias("reason"), F.left("value", F.lit(_LONGEST_KEPT)).alias("line"))

    def _parsed(self, hours: Sequence[Hour]) -> DataFrame:
        schema = StructType([StructField("value", StringType()), *_FOLDER])
        text = self._rows(hours, lambda reader: reader.schema(schema).text, F.col("_metadata.file_name").alias("file"))
        lines = text.where(F.trim("value") != "")
        # The generator is a barrier for Spark's optimizer. Without it, Spark would repeat the parser in every condition on the
        # event, and parse each line about fifty times.
        event = F.explode(F.array(parsed(F.col("value")))).alias("event")
        parsed_lines = lines.select(*HOUR, "value", "file", event)
        rejected = rejection(F.col("event").getField, F.col("date"), F.col("hour"))
        # Unlike Spark's JSON source, the parser of a column takes text that is not UTF-8.
        return parsed_lines.withColumn("rejected", F.when(~F.is_valid_utf8("value"), NO_JSON).otherwise(rejected))

    def _rows(self, hours: Sequence[Hour], read: _Read, *more: Column) -> DataFrame:
        """All lines of these hours with the columns `more`, read from their folders without a look into the others."""
        folders = [sorted({*self._folders[hour].values()}) for hour in hours]
        root = folders[0][0].rpartition("/date=")[0]

        def part(files: Sequence[str], *, ignore: bool) -> DataFrame:
            paths = [*map(literal, files)]
            reader = self._spark.read.option("basePath", root).option("pathGlobFilter", _FILES)
            return read(reader.option("ignoreCorruptFiles", ignore))(paths).select("*", *more)

        if all(len(of_hour) == 1 for of_hour in folders) and not any(self.unreadable[hour] for hour in hours):
            return part([of_hour for (of_hour,) in folders], ignore=False)
        named = [(hour, name) for hour in hours for name in sorted(self._folders[hour]) if (hour, name) not in self._closed]
        whole, broken = (
            [f"{self._folders[hour][name]}/{name}" for hour, name in named if (name in self.unreadable[hour]) is is_broken]
            for is_broken in (False, True)
        )
        parts = [part(files, ignore=ignore) for files, ignore in ((whole, False), (broken, True)) if files]
        if not parts:  # Spark reads no file for this condition
            return part(folders[0], ignore=True).where(F.lit(False))
        return reduce(DataFrame.unionByName, parts)


def shown_name(name: str) -> str:
    """A file's name as text. Bytes that are not UTF-8 become escapes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def unreadable_path(error: BaseException) -> str | None:
    """The path of the file that Spark could not read, None if `error` means something else."""
    found = re.search(r"FAILED_READ_FILE[^\n]*?((?:file|hdfs|s3a?|abfss?|gs):\S+)", str(error))
    return None if found is None else found[1].rstrip(".")


def in_hours(hours: Iterable[Hour]) -> Column:
    """A condition on the columns `date` and `hour`."""
    by_date: dict[dt.date, list[int]] = defaultdict(list)
    for date, hour in hours:
        by_date[date].append(hour)
    return reduce(
        Column.__or__,
        ((F.col("date") == date) & F.col("hour").isin(of_day) for date, of_day in by_date.items()),
        F.lit(False),
    )
