"""One Spark session and one run over the scenario for all tests of the reports."""

import errno
import gzip
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.ledger_paths import partition
from loadtest.scenarios.ledger.files import write_events
from tests.gateway.reports.html import Html
from tests.gateway.reports.scenario import BAD_LINES, START, events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.reports.job.refresh import Refreshed
    from gateway.reports.job.write import MadeReport


SPARK = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    # PySpark leaves its sockets for collected rows to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """A session as `weir report` starts it for a small ledger, but with one core."""
    from gateway.reports.job.session import BRIEF_BYTES, spark_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)  # Spark's default is the first python3 of the PATH
        # Not brief: Java would keep the objects of all tests.
        session = spark_session("local[1]", "1g", total=0, new=BRIEF_BYTES)
    yield session
    session.stop()


@dataclass(frozen=True)
class Run:
    """A report over the scenario, with its progress messages."""

    ledger: Path
    out: Path
    found: "Refreshed"
    reports: "Sequence[MadeReport]"
    messages: list[str]


@pytest.fixture(scope="session")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger")
    write_events(path, events())
    folder = path / partition(START)
    # A gateway appends one gzip member at each flush. Blank lines are ignored.
    members = [gzip.compress(f"{line}\n".encode()) for lines in BAD_LINES.values() for line in ("", *lines)]
    (folder / "weir-broken-0.jsonl.gz").write_bytes(b"".join(members))
    # The second is a copy under way by `hdfs dfs -put`.
    for unfinished in ("_unfinished.jsonl.gz.part", "weir-copied-0.jsonl.gz._COPYING_"):
        (folder / unfinished).write_bytes(b"not even gzip")
    return path


def forbid(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Refuse to list a folder. Its mode would not stop root, and root may run the tests."""
    scandir = os.scandir

    def refused(path: Path) -> object:
        if path == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)


@pytest.fixture(scope="session")
def report(spark: "SparkSession", ledger: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    from gateway.reports import all_reports
    from gateway.reports.job.period import Period
    from gateway.reports.job.refresh import refresh
    from gateway.reports.job.session import few_rows_session
    from gateway.reports.job.write import write_reports

    out = tmp_path_factory.mktemp("report")
    messages: list[str] = []
    found = refresh(spark, str(ledger), str(out), Period(), 24, messages.append)
    reports = list(all_reports().values())
    few_rows = found.tables.within(few_rows_session(spark))
    made = write_reports(found.tables, few_rows, str(out), messages.append, reports)
    return Run(ledger, out, found, made, messages)


@pytest.fixture(scope="module")
def html(text: str) -> Html:
    """The page `text` of the test's module."""
    return Html(text)
