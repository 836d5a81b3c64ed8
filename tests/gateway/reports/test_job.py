"""The report job: the lines it reads, the hours it repeats and the messages it prints."""

import datetime as dt
import gzip
import json
import os
import re
import time
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING

import pytest

from gateway.events import ThrottleEvent, UsageSample, VolumeStateChanged, to_line
from gateway.ledger_paths import partition
from gateway.quotas.kinds import BYTES
from gateway.throttle_slots import throttle_slot
from loadtest.scenarios.ledger.files import write_events
from loadtest.testkit.kafka.node import QUICK_START
from loadtest.testkit.spark_cluster import SparkCluster
from tests.gateway.reports.conftest import SPARK, Run
from tests.gateway.reports.expected import upper
from tests.gateway.reports.scenario import BAD_LINES, HOUR, START, events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK

DAY = dt.date(2026, 11, 20)
NEXT = dt.date(2026, 11, 21)


def test_every_line_is_counted(report: Run) -> None:
    assert report.found.events == len(events())
    assert report.found.rejected == sum(map(len, BAD_LINES.values()))
    assert report.found.new_events == report.found.events + report.found.rejected
    assert report.found.hours == [(DAY, 22), (DAY, 23), (NEXT, 0)]


def test_bad_lines_are_kept_with_their_reason(report: Run) -> None:
    files = list((report.out / "_rejected" / partition(START)).glob("*.json"))
    kept = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert sorted((row["reason"], row["line"]) for row in kept) == sorted(
        (reason, line) for reason, lines in BAD_LINES.items() for line in lines
    )
    assert {row["file"] for row in kept} == {"weir-broken-0.jsonl.gz"}


def test_largest_figures_are_good_lines(spark: "SparkSession", tmp_path: Path) -> None:
    """A network file system may have a capacity of 8 EiB, and a limit may be as large as the config allows."""
    from gateway.reports.job.ledger import LedgerFolder
    from gateway.reports.job.period import Period

    base = {"time_ms": START, "gateway": "weir-0"}
    most = 2**47 - 1
    write_events(
        tmp_path,
        [
            UsageSample(**base, kind="produce", limit=2.0**63, amount=float(most), requests=most),
            UsageSample(**base, kind="produce", amount=-float(most)),
            ThrottleEvent(
                **base,
                kind="produce",
                last_ms=most,
                throttle_ms=most,
                throttle_max_ms=most,
                throttle_slots={throttle_slot(most): 1, 0: 1},
            ),
            ThrottleEvent(**base, kind="fetch", last_ms=START, count=0, throttle_ms=0, throttle_max_ms=0, throttle_slots={}),
            VolumeStateChanged(
                **base, state="OPEN", previous="OPEN", factor=1.0, reason="recovered", broker=-1, capacity_bytes=2**63 - 1
            ),
        ],
    )
    folder = LedgerFolder(spark, str(tmp_path))
    lines = folder.lines(sorted(folder.files(Period())))
    assert [row.rejected for row in lines.select("rejected").collect()] == [None] * 5


def test_line_that_is_not_utf8_is_kept_as_bad(spark: "SparkSession", tmp_path: Path) -> None:
    from gateway.reports.job.ledger import LedgerFolder
    from gateway.reports.job.period import Period

    line = to_line(UsageSample(time_ms=START, gateway="weir-0", kind="produce", client_id="c", amount=1.0))
    hour = tmp_path / partition(START)
    hour.mkdir(parents=True)
    (hour / "weir-0.jsonl.gz").write_bytes(gzip.compress(line.encode().replace(b'"c"', b'"\xff"')))
    folder = LedgerFolder(spark, str(tmp_path))
    hours = sorted(folder.files(Period()))
    (counted,), (kept,) = folder.lines(hours).collect(), folder.bad_lines(hours).collect()
    assert counted.rejected == kept.reason == "not JSON, or a field of a wrong type or size"
    assert kept.line == line.replace('"c"', '"\ufffd"')


def test_job_reports_its_progress(report: Run) -> None:
    files = [file.stat().st_size for file in report.ledger.glob("*/*/weir-*.gz")]
    first, batch, days, *reports = report.messages
    assert first == f"3 of 3 hours are new or have new files: {BYTES.text(sum(files))} in {len(files)} files to read"
    assert batch.startswith("up to 2026-11-21 00:00: 3 of 3 hours, ")
    assert "events/s, about 0.0 s left" in batch
    assert days == "adding up 1 day that is over"
    assert sorted(line.split(":")[0] for line in reports) == sorted(made.report.name for made in report.reports)


def test_only_new_hours_are_read(spark: "SparkSession", report: Run, tmp_path: Path) -> None:
    """Finished hours stay although their files are gone. A late file repeats its hour. A new hour is added."""
    from gateway.reports.job.period import Period
    from gateway.reports.job.refresh import refresh

    ledger, out = copytree(report.ledger, tmp_path / "ledger"), copytree(report.out, tmp_path / "out")
    for file in (ledger / partition(START)).glob("*.gz"):
        file.unlink()
    late = UsageSample(time_ms=START + HOUR, gateway="weir-2", kind="produce", client_id="steady", amount=1.0)
    new = UsageSample(time_ms=START + 3 * HOUR, gateway="weir-2", kind="produce", client_id="steady", amount=2.0)
    write_events(ledger, [late, new])
    outcome = refresh(spark, str(ledger), str(out), Period((DAY, 23), None), 1, lambda messages: None)
    assert (outcome.new_hours, outcome.hours) == (2, [(DAY, 23), (NEXT, 0), (NEXT, 1)])
    whole = refresh(spark, str(ledger), str(out), Period(), 24, lambda messages: None)
    assert (whole.new_hours, whole.new_events, whole.events) == (0, 0, report.found.events + 2)
    assert used(whole) == used(report.found) + 3.0
    assert whole.rejected == report.found.rejected


def test_rates_of_a_part_come_from_its_minutes(spark: "SparkSession", report: Run) -> None:
    """The stored rates are those of a whole batch."""
    from gateway.reports.job.period import Period
    from gateway.reports.job.refresh import refresh

    def minutes(period: Period) -> int:
        found = refresh(spark, str(report.ledger), str(report.out), period, 24, lambda messages: None)
        return int(found.tables.rates.groupBy().sum("count").first()[0])  # type: ignore[index]

    parts = [minutes(Period(hour, hour)) for hour in report.found.hours]
    assert minutes(Period()) == sum(parts)
    assert sum(count > 0 for count in parts) > 1


def test_late_file_repeats_the_roll_up_of_its_day(spark: "SparkSession", report: Run, tmp_path: Path) -> None:
    from gateway.reports.job.period import Period
    from gateway.reports.job.refresh import refresh
    from gateway.reports.job.state import LAYOUT

    def days(ledger: Path, period: Period) -> set[str]:
        found = refresh(spark, str(ledger), str(out), period, 24, lambda messages: None)
        assert used(found) > 0
        return {folder.name for folder in (out / "_state" / LAYOUT).glob("days-*")}

    ledger, out = copytree(report.ledger, tmp_path / "ledger"), copytree(report.out, tmp_path / "out")
    first = days(ledger, Period())
    assert len(first) == 1, "the second day may go on"
    late = UsageSample(time_ms=START, gateway="weir-2", kind="produce", client_id="steady", amount=1.0)
    write_events(ledger, [late])
    assert days(ledger, Period((DAY, 22), (DAY, 22))) == first, "the period has a part of the day"
    assert len(days(ledger, Period()) - first) == 1


def test_repeated_roll_up_keeps_the_bytes_of_owners(spark: "SparkSession", tmp_path: Path) -> None:
    """Two days have one roll-up. The next one again has the second day, whose hours are in the first roll-up only.

    The reason is first a late file of the other day, and then a period without the other day.
    """
    from gateway.reports.job.period import Period
    from gateway.reports.job.refresh import refresh
    from gateway.reports.job.state import LAYOUT

    ledger, out = tmp_path / "ledger", str(tmp_path / "out")

    def samples(gateway: str, *hours: int) -> list[UsageSample]:
        at = [START + hour * HOUR for hour in hours]
        return [UsageSample(time_ms=one, gateway=gateway, kind="produce", user="alice", amount=7.0) for one in at]

    def bytes_of_second_day(period: Period) -> float:
        days = refresh(spark, str(ledger), out, period, 24, lambda messages: None).tables.owner_days
        return float(sum(row.total for row in days.where(days.date == NEXT).select("total").collect()))

    def roll_ups() -> int:
        return len(list((tmp_path / "out/_state" / LAYOUT).glob("days-*")))

    write_events(ledger, samples("weir-0", 0, 3, 30))
    assert (bytes_of_second_day(Period()), roll_ups()) == (7.0, 1)
    write_events(ledger, samples("weir-1", 1))
    assert (bytes_of_second_day(Period()), roll_ups()) == (7.0, 2)
    assert (bytes_of_second_day(Period((NEXT, 0), None)), roll_ups()) == (7.0, 3)


def test_java_compiles_the_first_pass(spark: "SparkSession", report: Run) -> None:
    """Java only interprets methods above 8 000 bytes, and says nothing about it."""
    from gateway.reports.job.first_pass import entity_minutes
    from gateway.reports.job.ledger import LedgerFolder
    from gateway.reports.job.period import Period

    generating = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {key: spark.conf.get(key) for key in generating}
    folder = LedgerFolder(spark, str(report.ledger))
    try:
        for key, value in generating.items():
            spark.conf.set(key, value)
        query = entity_minutes(folder.lines(sorted(folder.files(Period()))))
        plan = query._jdf.queryExecution().executedPlan()
        text = spark._jvm.org.apache.spark.sql.execution.debug.package.codegenString(plan)
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)
    sizes = [int(size) for size in re.findall(r"maxMethodCodeSize:(\d+)", text)]
    assert len(sizes) == 2
    assert max(sizes) <= 8000


def used(found: object) -> float:
    """Return the bytes that `steady` produced according to the hourly aggregates."""
    totals = found.tables.totals  # type: ignore[attr-defined]
    return float(totals.where("client_id = 'steady'").first()["amount"])


def test_half_written_batch_is_repeated(spark: "SparkSession", report: Run, tmp_path: Path) -> None:
    """A batch counts as soon as its mark is complete. Then it replaces the hours of an earlier batch."""
    from gateway.reports.job.ledger import LedgerFile
    from gateway.reports.job.period import Period
    from gateway.reports.job.state import DoneHour, State

    state = State(spark, str(copytree(report.out, tmp_path / "out")))
    state.load()
    done = dict(state.done(Period()))
    before = state.read("minutes", done)
    first = before.where("hour = 22")
    batch = state.begin()
    state.write_all(batch, {"minutes": first.limit(1)})
    again = {(DAY, 22): DoneHour(batch, frozenset({LedgerFile("f", 1)}), 1, 0)}
    state.load()
    assert state.done(Period()) == done, "a batch without a mark does not count"
    state.mark_done(again, {"minutes": before.schema, "topics": state.read("topics", done).schema})
    other = State(spark, str(tmp_path / "out"))
    other.load()
    assert other.done(Period()) == done | again
    assert other.read("minutes", other.done(Period())).count() == before.count() - first.count() + 1
    assert other.read("topics", again).count() == 0


def test_marks_are_merged_and_unused_folders_deleted(
    spark: "SparkSession", report: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateway.reports.job import state as job_state
    from gateway.reports.job.period import Period

    layout = copytree(report.out, tmp_path / "out") / "_state" / job_state.LAYOUT
    kept = [folder.name for name in ("batch", "days") for folder in layout.glob(f"{name}-*")]
    for name, age in (("batch-killed", job_state.UNUSED_SECONDS + 60), ("days-killed", 1e6), ("batch-running", 0)):
        (layout / name).mkdir()
        os.utime(layout / name, (time.time() - age,) * 2)
    monkeypatch.setattr(job_state, "MARKS", 0)
    merging, merged = (job_state.State(spark, str(tmp_path / "out")) for _ in range(2))
    merging.load()
    assert [mark.name for mark in (layout / "done").glob("[0-9]*")] == ["000000003.json"]
    assert {folder.name for folder in layout.glob("*-*")} == {*kept, "batch-running"}
    merged.load()
    hours = merged.done(Period())
    assert hours == merging.done(Period())
    assert merged.read("minutes", hours).count() == report.found.tables.table("minutes").count()
    assert merged.whole_days(hours) == {DAY: True, NEXT: False}


def test_state_of_another_version_is_refused(spark: "SparkSession", tmp_path: Path) -> None:
    from gateway.reports.job.state import State, StateError

    (tmp_path / "_state/2/done").mkdir(parents=True)
    with pytest.raises(StateError, match=r"_state has aggregates of another version .*layout 2.*Give --out another folder"):
        State(spark, str(tmp_path)).load()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schemas": {}, "batches": [{"hours": 1}]}'])
def test_damaged_mark_is_named(spark: "SparkSession", tmp_path: Path, text: str) -> None:
    from gateway.reports.job.state import LAYOUT, State, StateError

    mark = tmp_path / "_state" / LAYOUT / "done/000000001.json"
    mark.parent.mkdir(parents=True)
    mark.write_text(text)
    with pytest.raises(StateError, match=rf"{mark} is no mark of finished hours: .* Move it away"):
        State(spark, str(tmp_path)).load()


def test_slots_match_those_of_the_events(spark: "SparkSession") -> None:
    from gateway.reports.job.columns import slot_of, upper_of

    values = sorted({0, 1, 2**31 - 1, *(2**bit + near for bit in range(3, 40) for near in (-1, 0, 1, 2**bit // 3))})
    rows = spark.createDataFrame([(value,) for value in values], "value long").select("value", slot_of("value").alias("slot"))
    found = rows.select("value", "slot", upper_of(rows["slot"]).alias("upper")).collect()
    assert [tuple(row) for row in found] == [(value, throttle_slot(value), upper(value)) for value in values]


@pytest.mark.parametrize(
    ("period", "says"),
    [
        (((dt.date(2020, 1, 1), 0), (dt.date(2020, 1, 2), 0)), "it has the hours 2026-11-20 22:00 to 2026-11-21 00:00"),
        (None, "no files such as"),
    ],
)
def test_empty_input_is_explained(spark: "SparkSession", ledger: Path, tmp_path: Path, period: tuple | None, says: str) -> None:  # type: ignore[type-arg]
    from gateway.reports.job.period import Period
    from gateway.reports.job.refresh import NothingToReportError, refresh

    (tmp_path / "empty").mkdir()
    path = tmp_path / "empty" if period is None else ledger
    with pytest.raises(NothingToReportError, match=says):
        refresh(spark, str(path), str(tmp_path / "out"), Period(*(period or ())), 24, lambda messages: None)


def test_missing_path_is_explained(spark: "SparkSession", tmp_path: Path) -> None:
    from gateway.reports.job.period import Period
    from gateway.reports.job.refresh import NothingToReportError, refresh

    with pytest.raises(NothingToReportError, match="nowhere: no such path"):
        refresh(spark, str(tmp_path / "nowhere"), str(tmp_path / "out"), Period(), 24, lambda messages: None)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_paths_are_no_patterns(spark: "SparkSession", tmp_path: Path, scheme: str) -> None:
    from gateway.reports import all_reports
    from gateway.reports.job.period import Period
    from gateway.reports.job.refresh import refresh
    from gateway.reports.job.write import write_reports

    ledger, out = tmp_path / "g[1]{a,b}*?", f"{scheme}{tmp_path}/o[1]{{x}}"
    write_events(ledger, [UsageSample(time_ms=START, gateway="weir-0", kind="fetch", user="ada", limit=2.0, amount=60.0)])
    found = refresh(spark, f"{scheme}{ledger}", out, Period(), 24, lambda messages: None)
    (made,) = write_reports(found.tables, found.tables, out, lambda messages: None, [all_reports()["utilisation"]])
    assert [(row["user"], row["peak_utilisation"]) for row in made.rows] == [("ada", 0.5)]


def test_unreadable_file_is_named(spark: "SparkSession", ledger: Path, tmp_path: Path) -> None:
    from gateway.reports.job.period import Period
    from gateway.reports.job.refresh import refresh, unreadable

    folder = tmp_path / partition(START)
    folder.mkdir(parents=True)
    whole = gzip.compress(b"x" * 100_000)
    (folder / "weir-cut-0.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Exception, match="FAILED_READ_FILE") as failed:
        refresh(spark, str(tmp_path), str(tmp_path / "out"), Period(), 24, lambda messages: None)
    said = unreadable(failed.value)
    assert said is not None
    assert "weir-cut-0.jsonl.gz can't be read" in said
    assert "--skip-unreadable" in said


@pytest.mark.parametrize("others", [["weir-1"], []])
def test_file_that_can_not_be_opened_is_skipped(spark: "SparkSession", tmp_path: Path, others: list[str]) -> None:
    """The error is made up, because root may open every file. Spark raises it again if it ignores faults of the content."""
    from gateway.reports.job.ledger import LedgerFolder
    from gateway.reports.job.period import Period

    for gateway in ("weir-0", *others):
        write_events(tmp_path, [UsageSample(time_ms=START, gateway=gateway, kind="produce", amount=1.0)])
    folder = LedgerFolder(spark, str(tmp_path))
    ((hour, files),) = folder.files(Period()).items()
    (closed,) = (file.name for file in files if "weir-0" in file.name)
    error = ValueError(
        f"[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file://{tmp_path}/"
        f"{partition(START)}/{closed}. File does not exist."
    )
    assert [folder.skip(error) for _ in range(3)] == [closed, closed, None]
    assert folder.unreadable[hour] == {closed}
    assert [row.gateway for row in folder.lines([hour]).collect()] == others
    assert folder.bad_lines([hour]).collect() == []


def test_readable_part_of_a_cut_file_counts_if_skipped(spark: "SparkSession", tmp_path: Path) -> None:
    from gateway.reports.job.ledger import LedgerFolder
    from gateway.reports.job.period import Period
    from gateway.reports.job.refresh import refresh

    samples = [
        UsageSample(time_ms=START, gateway="weir-0", kind="produce", client_id=f"c{number}", amount=float(number))
        for number in range(5_000)
    ]
    ledger, out = tmp_path / "ledger", str(tmp_path / "out")
    write_events(ledger, samples)
    (whole,) = ledger.glob("*/*/*.gz")
    (whole.parent / "weir-cut-0.jsonl.gz").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    said: list[str] = []
    for _ in range(2):
        found = refresh(spark, str(ledger), out, Period(), 24, said.append, skip_unreadable=True)
        assert 5_000 < found.events < 10_000
        assert found.unreadable == [f"weir-cut-0.jsonl.gz of {DAY} 22:00"]
    assert [line for line in said if "weir-cut" in line] == [
        "weir-cut-0.jsonl.gz can't be read to its end, so the rest of its lines is left out"
    ]
    (hour,) = found.hours
    folder = LedgerFolder(spark, str(ledger))
    folder.files(Period())
    folder.unreadable[hour].add("weir-cut-0.jsonl.gz")
    assert folder.bad_lines([hour]).count() <= 1, "the line that is cut"


def test_cluster_that_loses_a_worker_makes_the_same_reports(report: Run, tmp_path: Path) -> None:
    """The script for spark-submit on a standalone cluster. A worker is killed while its executor has results of tasks."""
    import gateway.reports.__main__ as script

    out = tmp_path / "out"
    with SparkCluster(tmp_path / "cluster") as cluster:
        driver = cluster.submit(Path(script.__file__), ["--events", str(report.ledger), "--out", str(out)], BRIEF)
        cluster.wait_until(lambda: any(map(cluster.finished_tasks, cluster.workers)), "finished task")
        cluster.kill(next(filter(cluster.finished_tasks, cluster.workers)))
        code = driver.wait(400)
        said = cluster.log("driver")
        assert code == 0, said
        assert [worker["state"] for worker in cluster.state()["workers"]].count("DEAD") == 1
    assert "Lost executor" in said
    assert said.splitlines()[-1] == f"{out}/report.html"
    for made in report.reports:
        of_cluster, of_machine = (parquet_rows(path / made.report.name) for path in (out, report.out))
        assert of_cluster == of_machine
        assert csv_lines(out, made.report.name) == csv_lines(report.out, made.report.name)


BRIEF = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    # Without these two, one worker could do all the work before the other has started.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    # On a busy machine, heartbeats may be late.
    "spark.network.timeout": "600s",
    # For so few events, code generation and distribution take far longer than the work itself.
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.executor.extraJavaOptions": QUICK_START,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.enabled": "false",
}


def parquet_rows(folder: Path) -> list[tuple[object, ...]]:
    """The names and types of the columns, and all rows. Spark would need two seconds of CPU more."""
    import duckdb

    rows = duckdb.read_parquet(f"{folder}/*.parquet")
    return [tuple(rows.columns), tuple(map(str, rows.types)), *sorted(rows.fetchall(), key=str)]


def csv_lines(out: Path, name: str) -> list[str]:
    """The header and the rows. Rows with equal sort keys have no order."""
    (file,) = (out / "csv" / name).glob("*.csv")
    header, *rows = file.read_text().splitlines()
    return [header, *sorted(rows)]
