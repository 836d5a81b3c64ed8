"""`weir report --every`: runs that follow each other in one process."""

import errno
import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.events import UsageSample
from gateway.ledger_paths import partition
from gateway.reports import all_reports
from gateway.reports.job.messages import Messages, only_run
from gateway.reports.job.period import Period
from loadtest.scenarios.ledger.files import write_events
from tests.gateway.reports.conftest import SPARK, forbid
from tests.gateway.reports.scenario import HOUR, START

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.reports.job.report_run import ReportRun

pytestmark = SPARK

EVERY = 900.0


@pytest.fixture(autouse=True)
def few_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two reports show the repetition as well as all of them, in two thirds of the time."""
    few = {name: report for name, report in all_reports().items() if name in ("chargeback", "top_throttled")}
    monkeypatch.setattr("gateway.reports.job.report_run.all_reports", lambda: few)


class EndOfTestError(Exception):
    """No run follows."""


def use(ledger: Path, hours: int, amount: float) -> None:
    write_events(ledger, [UsageSample(time_ms=START + hours * HOUR, gateway="g", kind="produce", client_id="c", amount=amount)])


def write_half(path: Path) -> None:
    """Write a gzip file that lacks its second half."""
    whole = gzip.compress(bytes(range(256)) * 400)
    path.write_bytes(whole[: len(whole) // 2])


def report_run(spark: "SparkSession", folder: Path, batch_hours: int = 24) -> "ReportRun":
    from gateway.reports.job.report_run import ReportRun

    messages = Messages(quiet=False)
    return ReportRun(spark, str(folder / "ledger"), str(folder / "out"), Period(), batch_hours, messages, is_small=True)


def repeat(spark: "SparkSession", folder: Path, *between: Callable[[], object], batch_hours: int = 24) -> list[float]:
    """Repeat the runs over `folder`. Calls one function in place of each wait. Returns the seconds of the waits."""
    waits: list[float] = []
    left = iter(between)

    def wait(seconds: float) -> None:
        waits.append(seconds)
        then = next(left, None)
        if then is None:
            raise EndOfTestError
        then()

    run = report_run(spark, folder, batch_hours)
    with pytest.raises(EndOfTestError):
        run.repeat(EVERY, lambda: run.messages.progress("fetched"), wait)
    return waits


def used(folder: Path) -> int:
    """The bytes in the report's CSV file of charges."""
    (file,) = (folder / "out/csv/chargeback").glob("*.csv")
    columns, *rows = (line.split(",") for line in file.read_text().splitlines())
    return sum(int(float(row[columns.index("used_bytes")])) for row in rows)


def test_next_run_reads_only_new_files(spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second run has no new files, and leaves the reports. The third one adds an hour."""
    use(tmp_path / "ledger", 0, 100.0)
    page = tmp_path / "out/report.html"
    found: list[int] = []

    def no_new_file() -> None:
        found.append(used(tmp_path))
        page.write_text("the first page")

    def new_hour() -> None:
        assert page.read_text() == "the first page"
        use(tmp_path / "ledger", 1, 20.0)

    waits = repeat(spark, tmp_path, no_new_file, new_hour)
    assert (*found, used(tmp_path)) == (100, 120)
    assert page.read_text() != "the first page"
    assert all(0 < seconds < EVERY for seconds in waits)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [f"{page}"] * 3
    assert shown.err.count("the next run begins at ") == 3
    assert shown.err.count("fetched") == 2
    assert shown.err.count("1 event of 1 hour read, 0 bad lines, ") == 2


def test_run_without_a_report_is_tried_again(spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ledger").mkdir()
    repeat(spark, tmp_path, lambda: use(tmp_path / "ledger", 0, 7.0))
    shown = capsys.readouterr()
    (said,) = [line for line in shown.err.splitlines() if line.startswith("weir report: ")]
    assert "has no files such as" in said
    assert shown.out.splitlines() == [f"{tmp_path}/out/report.html"]
    assert used(tmp_path) == 7


def refusal(spark: "SparkSession", folder: Path) -> str:
    """The message of a run that makes no report, after which a process with `--every` goes on."""
    from gateway.reports.job.report_run import NoReportError

    with pytest.raises(NoReportError) as refused:
        report_run(spark, folder).make()
    return str(refused.value)


def test_cut_file_stops_a_run(spark: "SparkSession", tmp_path: Path) -> None:
    hour = tmp_path / "ledger" / partition(START)
    hour.mkdir(parents=True)
    write_half(hour / "weir-cut-0.jsonl.gz")
    assert "weir-cut-0.jsonl.gz can't be read" in refusal(spark, tmp_path)


def test_folder_in_use_stops_a_run(spark: "SparkSession", tmp_path: Path) -> None:
    use(tmp_path / "ledger", 0, 7.0)
    with only_run("--out", tmp_path / "out"):
        said = refusal(spark, tmp_path)
    assert "weir report is writing here, and each would overwrite the other's files; wait for its end" in said


def test_forbidden_folder_stops_a_run(spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(tmp_path / "ledger", 0, 7.0)
    hour = tmp_path / "ledger" / partition(START)
    forbid(monkeypatch, hour)
    assert refusal(spark, tmp_path).startswith(f"{hour}: can't be read (Permission denied); give this user")


def test_full_disk_stops_a_run(spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk has no room for the largest file, the page."""
    write, page = Path.write_bytes, tmp_path / "out/report.html"

    def full(path: Path, text: bytes) -> int:
        if "report.html" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, text)

    use(tmp_path / "ledger", 0, 7.0)
    monkeypatch.setattr(Path, "write_bytes", full)
    said = refusal(spark, tmp_path)
    assert said.startswith(f"{page}: can't be written (No space left on device); free space for {page}")


def test_late_file_keeps_the_figures_of_files_that_are_gone(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, found = tmp_path / "ledger", list[int]()
    use(ledger, 0, 100.0)
    ((hour, early),) = ((file.parent, file) for file in ledger.glob("*/*/*"))

    def late() -> None:
        found.append(used(tmp_path))
        early.rename(tmp_path / early.name)
        write_events(ledger, [UsageSample(time_ms=START, gateway="late", kind="produce", client_id="c", amount=7.0)])
        use(ledger, 1, 20.0)

    def put_back() -> None:
        found.append(used(tmp_path))
        (tmp_path / early.name).rename(hour / early.name)

    repeat(spark, tmp_path, late, put_back)
    assert (*found, used(tmp_path)) == (100, 120, 127)
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "are gone" in line]
    assert said.startswith("weir report: the reports lack new files of 1 hour, because earlier files are gone: ")
    assert said.endswith(
        f": 2026-11-20 22:00 lacks {early.name}. Put the earlier files back, and the next run reads these hours again"
    )


def test_hours_of_a_failed_run_come_into_the_next_reports(spark: "SparkSession", tmp_path: Path) -> None:
    """The failed run aggregates one hour, and then finds a broken file in the next hour.

    Each run frees its tables in memory: several reports read the same dictionaries.
    """
    use(tmp_path / "ledger", 0, 100.0)
    kept: list[int] = []
    broken = tmp_path / "ledger" / partition(START + 2 * HOUR) / "weir-cut-0.jsonl.gz"

    def add() -> None:
        kept.append(spark.sparkContext._jsc.getPersistentRDDs().size())  # type: ignore[attr-defined]
        use(tmp_path / "ledger", 1, 20.0)
        broken.parent.mkdir(parents=True)
        write_half(broken)

    repeat(spark, tmp_path, add, broken.unlink, batch_hours=1)
    assert used(tmp_path) == 120
    assert kept == [0]
