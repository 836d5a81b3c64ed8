"""Updates the aggregates, and writes all reports and the page from them.

`weir report --every` does this again and again in one process. Most of a short run is Java's start and the first use of
Spark's classes. Later runs of the same process need neither.
"""

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from pyspark.sql import SparkSession

from gateway.reports import all_reports
from gateway.reports.job.command import submitted
from gateway.reports.job.folders import UnreadableFolderError, folder
from gateway.reports.job.messages import InUseError, Messages, UnwritableFileError, unreadable_folder, unwritable_file
from gateway.reports.job.overview import Overview, overview
from gateway.reports.job.page import page
from gateway.reports.job.period import Hour, Period
from gateway.reports.job.phrases import counted
from gateway.reports.job.refresh import NothingToReportError, Refreshed, refresh, unreadable
from gateway.reports.job.session import BRIEF_BYTES, FEW_HOURS, few_rows_session, ledger_bytes
from gateway.reports.job.state import DoneHour
from gateway.reports.job.write import write_reports
from gateway.reports.what_if.report import what_if_report
from gateway.reports.what_if.targets import WhatIfQuotas


class NoReportError(Exception):
    """The reports can't be made now. The message says why. A later run may succeed."""


@dataclass
class ReportRun:
    """The reports of `period` from the ledger at `events`, in the folder `out`.

    `quotas` are those of the report `what_if`. `is_small` is true for a session with the settings `FEW_ROWS`.
    """

    spark: SparkSession
    events: str
    out: str
    period: Period
    batch_hours: int
    messages: Messages
    quotas: WhatIfQuotas | None = None
    is_small: bool = False
    skip_unreadable: bool = False
    _few_rows: SparkSession | None = field(default=None, init=False)
    _made_of: Mapping[Hour, DoneHour] | None = field(default=None, init=False)

    def make(self) -> Refreshed:
        """Make the reports. Later calls leave them as they are if the aggregates are those of the last whole run.

        Raises `NoReportError` and `StateError`.
        """
        try:
            with folder(self.spark, self.out).only_run("--out"):
                return self._make()
        except (NothingToReportError, InUseError) as error:
            raise NoReportError(str(error)) from error
        except UnreadableFolderError as error:
            raise NoReportError(unreadable_folder(error)) from error
        except UnwritableFileError as error:
            raise NoReportError(unwritable_file(error)) from error
        except Exception as error:
            reason = unreadable(error)
            if reason is None:
                raise
            raise NoReportError(reason) from error

    def repeat(self, seconds: float, fetch: Callable[[], object], wait: Callable[[float], object]) -> NoReturn:
        """Make the reports now and at this interval, until a signal ends the process. `fetch` is called before each later run.

        A run that takes longer than the interval delays the next one. Raises `StateError`, and the errors of `wait`.
        """
        while True:
            try:
                self.end(self.make())
            except NoReportError as error:
                self.messages.error(str(error))
            self._free()
            left = max(seconds - self.messages.seconds, 0.0)
            begin = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=left)
            self.messages.progress(f"the next run begins at {begin:%Y-%m-%d %H:%M:%S} UTC; Ctrl-C ends weir report")
            wait(left)
            self.messages.restart()
            fetch()

    def _free(self) -> None:
        """Free the tables in memory, and let Java return its free memory to the system."""
        self.spark.catalog.clearCache()
        java: Any = self.spark.sparkContext
        java._jvm.System.gc()

    def end(self, found: Refreshed) -> None:
        """Say what a run has read, and print the page's path."""
        read = f"{counted(found.new_events, 'event', 'events')} of {counted(found.new_hours, 'hour', 'hours')} read"
        self.messages.progress(f"{read}, {found.rejected:,} bad lines, {self.messages.seconds:.0f} s in total")
        if found.unreadable:
            few = counted(len(found.unreadable), "file", "files")
            more = ", ..." if len(found.unreadable) > 5 else ""
            names = ", ".join(found.unreadable[:5])
            self.messages.error(f"the reports lack a part of {few} that can't be read: {names}{more}")
        if found.incomplete:
            few = counted(len(found.incomplete), "hour", "hours")
            more = "; ..." if len(found.incomplete) > 5 else ""
            self.messages.error(
                f"the reports lack new files of {few}, because earlier files are gone: {'; '.join(found.incomplete[:5])}{more}."
                " Put the earlier files back, and the next run reads these hours again"
            )
        self.messages.result(f"{self.out}/report.html")

    def _make(self) -> Refreshed:
        _, new = ledger_bytes(self.events, self.out, self.period)
        progress = self.messages.progress
        found = refresh(
            self.spark, self.events, self.out, self.period, self.batch_hours, progress, skip_unreadable=self.skip_unreadable
        )
        # A run that failed, or another process, may have aggregated hours that the reports lack.
        if found.done == self._made_of:
            return found
        few_rows = found.tables
        # A small ledger's session has these settings already.
        if not (self.is_small or submitted()) and new < BRIEF_BYTES and few_rows.single_hours <= FEW_HOURS:
            self._few_rows = self._few_rows or few_rows_session(self.spark)
            few_rows = few_rows.within(self._few_rows)
        wanted = list(all_reports().values())
        if self.quotas is not None:
            wanted.insert(0, what_if_report(self.spark, self.quotas))
        tops: list[Overview] = []
        top = partial(overview, few_rows, len(found.hours))
        reports = write_reports(found.tables, few_rows, self.out, progress, wanted, lambda: tops.append(top()))
        folder(self.spark, self.out).write("report.html", page(found, tops[0], reports, dt.datetime.now(dt.UTC)))
        self._made_of = found.done
        return found
