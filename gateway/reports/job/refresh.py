"""Updates the hourly aggregates: reads the events of new hours once, and stores their aggregates."""

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from gateway.quotas.kinds import BYTES
from gateway.reports.job.first_pass import entity_minutes
from gateway.reports.job.hours import ENTITY_MINUTES, HourEvents, hourly
from gateway.reports.job.ledger import LedgerFile, LedgerFolder, NoSuchPathError, shown_name, unreadable_path
from gateway.reports.job.period import Hour, Period, shown
from gateway.reports.job.phrases import counted, duration
from gateway.reports.job.rare_hours import counts, rare, rare_schemas
from gateway.reports.job.state import DoneHour, State, batches, missing, pending, write_rejected
from gateway.reports.job.tables import StoredTables, roll_up
from gateway.reports.job.threads import in_threads, side_by_side

_BATCHES_AT_ONCE: Final = 2
"""The number of batches in memory."""
_NAMED: Final = 5
"""The limit on the files that a message names of an hour."""


class NothingToReportError(Exception):
    """The ledger has no events in the period. The message says which events there are."""


@dataclass(frozen=True)
class Refreshed:
    """The aggregates of a period. `events` and `rejected` count its lines, `new_events` the lines read in this run.

    `missing` are the hours whose new files are left out, and their files that are gone.
    """

    tables: StoredTables
    done: Mapping[Hour, DoneHour]
    hours: Sequence[Hour]
    events: int
    rejected: int
    new_hours: int
    new_events: int
    missing: Mapping[Hour, Sequence[str]] = field(default_factory=dict)

    @property
    def unreadable(self) -> list[str]:
        """The files that could not be read to their end, by hour."""
        return [
            f"{shown_name(name)} of {shown(hour)}"
            for hour, done in sorted(self.done.items())
            for name in sorted(done.unreadable)
        ]

    @property
    def incomplete(self) -> list[str]:
        """The hours in `missing`, each with its files that are gone."""
        return [
            f"{shown(hour)} lacks {', '.join(map(shown_name, names[:_NAMED]))}{', ...' if len(names) > _NAMED else ''}"
            for hour, names in sorted(self.missing.items())
        ]


def refresh(
    spark: SparkSession,
    events: str,
    out: str,
    period: Period,
    batch_hours: int,
    progress: Callable[[str], None],
    *,
    skip_unreadable: bool = False,
) -> Refreshed:
    """Aggregate the hours of the ledger under `events` that are new or have new files.

    Calls `progress` with one line at a time. Raises `NothingToReportError`. With `skip_unreadable`, files that can't be read to
    their end raise nothing.
    """
    ledger, state = LedgerFolder(spark, events), State(spark, out)
    files, _ = side_by_side(partial(_files, ledger, events, period), state.load)
    done = dict(state.done(period))
    gone = missing(files, done)
    new = [hour for hour in pending(files, done) if hour not in gone]
    if not files and not done:
        raise NothingToReportError(_nothing(ledger, events))
    progress(_first_line(len(files.keys() | done.keys()), [files[hour] for hour in new]))
    began = dt.datetime.now(dt.UTC)
    new_events = 0
    finished = 0
    reading, storing = Lock(), Lock()

    def readable(batch: Mapping[Hour, frozenset[LedgerFile]]) -> _Minutes:
        while True:
            try:
                return _Minutes.of(state, ledger, batch)
            except Exception as error:
                name = ledger.skip(error) if skip_unreadable else None
                if name is None:
                    raise
                progress(f"{name} can't be read to its end, so the rest of its lines is left out")

    def aggregate(batch: Sequence[Hour]) -> None:
        nonlocal finished, new_events
        with reading:
            minutes = readable({hour: files[hour] for hour in batch})
        with storing:
            made = _aggregate(ledger, state, out, minutes)
            done.update(made)
            finished += len(batch)
            new_events += sum(hour.events + hour.rejected for hour in made.values())
            seconds = (dt.datetime.now(dt.UTC) - began).total_seconds()
            progress(_progress_line(finished, len(new), batch[-1], new_events, seconds))

    # The driver plans the tables of one batch while the cores read the next one.
    in_threads(aggregate, batches(new, batch_hours), _BATCHES_AT_ONCE)
    roll_up(state, done, progress)
    return Refreshed(
        tables=StoredTables(state, done),
        done=done,
        hours=sorted(done),
        events=sum(hour.events for hour in done.values()),
        rejected=sum(hour.rejected for hour in done.values()),
        new_hours=len(new),
        new_events=new_events,
        missing=gone,
    )


def _files(ledger: LedgerFolder, path: str, period: Period) -> Mapping[Hour, frozenset[LedgerFile]]:
    try:
        return ledger.files(period)
    except NoSuchPathError as error:
        raise NothingToReportError(f"--events {path}: no such path") from error


def _nothing(ledger: LedgerFolder, path: str) -> str:
    everything = sorted(ledger.files(Period()))
    if not everything:
        return (
            f"--events {path}: the path has no files such as date=2026-11-21/hour=15/*.jsonl.gz. Is it the ledger's path?"
            " The report reads finished files only: a gateway finishes a file after ledger.rotate_seconds (300) or at its end"
        )
    return (
        f"--events {path}: the ledger has no hour from --from to --to; it has the hours"
        f" {shown(everything[0])} to {shown(everything[-1])} (UTC)"
    )


@dataclass(frozen=True)
class _Minutes:
    """The stored `entity_minutes` of a batch, the files of its hours, and the plans of tables that the minutes become."""

    batch: str
    files: Mapping[Hour, frozenset[LedgerFile]]
    hours: HourEvents
    tables: Mapping[str, DataFrame]
    counts: DataFrame

    @classmethod
    def of(cls, state: State, ledger: LedgerFolder, files: Mapping[Hour, frozenset[LedgerFile]]) -> "_Minutes":
        batch = state.begin()
        rows = entity_minutes(ledger.lines(sorted(files)))
        hours = HourEvents(state.expected(batch, ENTITY_MINUTES, rows.schema))
        # The driver plans the next tables while the cores read the lines.
        _, tables, found = side_by_side(
            partial(state.write, batch, ENTITY_MINUTES, rows), partial(hourly, hours), partial(counts, hours)
        )
        state.refresh(hours.stored)
        return cls(batch, files, hours, tables, found)


def _aggregate(ledger: LedgerFolder, state: State, out: str, minutes: _Minutes) -> Mapping[Hour, DoneHour]:
    """Make the other tables of a batch, and mark its hours as done."""
    batch, files = minutes.batch, minutes.files
    made = {hour: DoneHour(batch, files[hour], 0, 0, frozenset(ledger.unreadable[hour])) for hour in files}
    rows = minutes.counts.collect()
    for row in rows:
        hour = row.date, row.hour
        made[hour] = replace(made[hour], events=row.lines - row.bad, rejected=row.bad)
    tables = {**minutes.tables, **rare(minutes.hours, rows)}
    state.write_all(batch, tables)
    with_bad = [hour for hour, done in made.items() if done.rejected]
    if with_bad:
        write_rejected(ledger.bad_lines(with_bad), out)
    schemas = rare_schemas() | {name: rows.schema for name, rows in tables.items()}
    state.mark_done(made, {ENTITY_MINUTES: minutes.hours.stored.schema} | schemas)
    return made


def _first_line(hours: int, new: Sequence[frozenset[LedgerFile]]) -> str:
    """`new` are the files of each hour that will be read."""
    lengths = [file.length for of_hour in new for file in of_hour]
    size = f": {BYTES.text(sum(lengths))} in {counted(len(lengths), 'file', 'files')} to read" if lengths else ""
    return f"{len(new)} of {hours} hours are new or have new files{size}"


def _progress_line(finished: int, new: int, last: Hour, events: int, seconds: float) -> str:
    left = seconds / finished * (new - finished)
    return (
        f"up to {shown(last)}: {finished} of {new} hours, {events:,} events, "
        f"{events / max(seconds, 0.001):,.0f} events/s, about {duration(left)} left"
    )


def unreadable(error: BaseException) -> str | None:
    """A message if `error` means that Spark could not read a file; otherwise None."""
    path = unreadable_path(error)
    return None if path is None else f"{path} can't be read. Move it away, or skip such files with --skip-unreadable"
