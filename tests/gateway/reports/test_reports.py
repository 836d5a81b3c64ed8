"""Every figure of every report equals the one that plain Python computes from the scenario."""

import csv
import datetime as dt
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.gateway.reports.conftest import SPARK, Run
from tests.gateway.reports.expected import EXPECTED
from tests.gateway.reports.scenario import MEMBER_OF, uses

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = SPARK


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(
        ({key: row[key] for key in sorted(row)} for row in rows), key=lambda row: [str(value) for value in row.values()]
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_report_has_expected_figures(spark: "SparkSession", report: Run, name: str) -> None:
    rows = [row.asDict() for row in spark.read.parquet(str(report.out / name)).collect()]
    assert in_order(rows) == in_order(EXPECTED[name]())


def test_changes_of_one_moment_have_ids_of_their_own(spark: "SparkSession") -> None:
    """Two requests of one batch set a limit and remove it."""
    from gateway.reports.config_changes import _changes
    from gateway.reports.job.schema import EVENT_SCHEMA

    limits = [(None, 5.0), (5.0, None), (None, 5.0)]
    rows = [{"type": "quota_change", "gateway": "g", "time_ms": 1, "old_limit": old, "new_limit": new} for old, new in limits]
    found = _changes(SimpleNamespace(table=lambda _: spark.createDataFrame(rows, EVENT_SCHEMA))).collect()  # type: ignore[arg-type]
    assert len({row.change for row in found}) == 3


def test_expected_reports_are_complete(report: Run) -> None:
    assert {made.report.name for made in report.reports} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_rows_are_sorted_and_columns_explained(report: Run, name: str) -> None:
    made = next(made for made in report.reports if made.report.name == name)
    first, by = made.report.sort[0].removeprefix("-"), made.report.sort[0].startswith("-")
    values = [row[first] for row in made.rows]
    assert values == sorted(values, reverse=by)
    assert set(made.report.columns) <= set(made.columns)
    assert {key.removeprefix("-") for key in made.report.sort} <= set(made.columns)
    assert made.count == len(made.rows) == len(EXPECTED[name]())


@pytest.mark.parametrize("name", EXPECTED)
def test_every_column_has_a_heading_with_its_unit(report: Run, name: str) -> None:
    from gateway.reports.job.headings import HEADINGS

    units = {"_ms": ("(ms)", "(s)"), "_minutes": "(min)", "_fraction": "(fraction)", "_bytes": "(bytes)", "_seconds": "(s)"}
    made = next(made for made in report.reports if made.report.name == name)
    for column in made.columns:
        assert "_" not in HEADINGS[column]
        unit = next((unit for end, unit in units.items() if column.endswith(end)), "")
        assert HEADINGS[column].endswith(unit)


@pytest.mark.parametrize("name", EXPECTED)
def test_csv_has_the_same_rows(report: Run, name: str) -> None:
    made = next(made for made in report.reports if made.report.name == name)
    (file,) = (report.out / "csv" / name).glob("*.csv")
    with file.open(newline="") as text:
        rows = list(csv.DictReader(text))
    assert list(rows[0]) == list(made.columns)
    assert len(rows) == made.count
    number = next(column for column in made.columns if isinstance(made.rows[0][column], (int, float)))
    assert float(rows[0][number].replace("true", "1").replace("false", "0")) == made.rows[0][number]


def test_chargeback_adds_up_to_all_bytes_measured(report: Run) -> None:
    (made,) = (made for made in report.reports if made.report.name == "chargeback")
    measured = report.found.tables.minutes.where("kind in ('produce', 'fetch')").groupBy("kind").sum("amount").collect()
    assert {row["kind"]: row["sum(amount)"] for row in measured} == {
        kind: sum(row["used_bytes"] or 0 for row in made.rows if row["kind"] == kind) for kind in ("produce", "fetch")
    }


def test_chargeback_by_group_adds_up_to_all_bytes_measured(report: Run) -> None:
    """The clients' own use lines have all bytes measured. A parent group would count bytes of its groups twice."""
    (made,) = (made for made in report.reports if made.report.name == "chargeback")
    of_groups = {
        owner: sum(row["group_bytes"] for row in made.rows if (row["owner_type"], row["owner"]) == owner)
        for owner in {(row["owner_type"], row["owner"]) for row in made.rows if row["group_bytes"] is not None}
    }
    parents = {owner: of_groups.pop(owner) for owner in [*of_groups] if owner[0] == "parent group"}
    clients = [use for use in uses() if use.bucket.kind in ("produce", "fetch") and use.bucket.group is None]
    assert sum(of_groups.values()) == sum(use.amount for use in clients)
    assert of_groups["no group", ""] == sum(use.amount for use in clients if use.bucket.user not in MEMBER_OF)
    assert parents == {("parent group", "cluster"): of_groups["group", "payments"] + of_groups["group", "batch"]}
    assert of_groups["group", "payments"] == sum(use.amount for use in clients if use.bucket.user == "payer")


@dataclass
class UseTables:
    """The tables that `trend` reads, from (date, user or `group=NAME`, bytes)."""

    spark: "SparkSession"
    uses: list[tuple[dt.date, str, float]]

    @property
    def names(self) -> "DataFrame":
        users = sorted({user for _, user, _ in self.uses})
        groups = [user.removeprefix("group=") if user.startswith("group=") else None for user in users]
        rows = [
            (number, "fetch", None if group else user, None, group)
            for number, (user, group) in enumerate(zip(users, groups, strict=True))
        ]
        return self.spark.createDataFrame(rows, "entity long, kind string, user string, client_id string, group string")

    @property
    def minutes(self) -> "DataFrame":
        return self.spark.createDataFrame([(date,) for date, _, _ in self.uses], "date date")

    @property
    def owner_months(self) -> "DataFrame":
        from gateway.reports.job.owners import months_of, owner_days

        users = sorted({user for _, user, _ in self.uses})
        rows = [(date, 0, users.index(user), [amount, *[None] * 11]) for date, user, amount in self.uses]
        five_minutes = self.spark.createDataFrame(rows, "date date, hour int, entity long, amounts array<double>")
        # None of them has a parent.
        groups = self.spark.createDataFrame([], "date date, hour int, kind string, parent string")
        return months_of(owner_days(self.names, five_minutes, groups))


def test_rates_of_a_month_need_only_its_busiest_intervals(spark: "SparkSession") -> None:
    from gateway.reports.job.owners import rates_of_month, summed_months

    amounts = [[300.0 * (number * 7919 % 8000) for number in range(day, 8000, 25)] for day in range(25)]
    columns = "month date, owner_type string, owner string, kind string, total double, count long, top array<double>"
    rows = [(dt.date(2026, 3, 1), "user", "ada", "fetch", sum(day), len(day), sorted(day)) for day in amounts]
    first, last = spark.createDataFrame(rows[:20], columns), spark.createDataFrame(rows[20:], columns)
    stored = summed_months(first)
    assert stored.selectExpr("size(top)").first()[0] < stored.first()["count"]  # type: ignore[index]
    month = summed_months(stored.unionByName(last)).select("total", "count", *rates_of_month()).collect()
    assert [tuple(row) for row in month] == [(300.0 * sum(range(8000)), 8000, 7999, 7599)]


def test_trend_shows_owners_that_come_and_go(spark: "SparkSession") -> None:
    """A month without any line in the ledger is unknown; an owner without use in a known month used 0 bytes."""
    from gateway.reports import all_reports

    use = [(7, "old", 100.0), (9, "old", 200.0), (9, "both", 1000.0), (10, "both", 1500.0), (10, "new", 30.0)]
    use += [(9, "group=all", 1200.0), (10, "group=all", 1530.0)]
    tables: Any = UseTables(spark, [(dt.date(2026, month, 3), user, amount) for month, user, amount in use])
    rows = all_reports()["trend"].build(tables).collect()
    groups = [(row.month.month, row.group_bytes, row.before_group_bytes) for row in rows if row.owner_type == "group"]
    assert sorted(groups) == [(9, 1200, None), (10, 1530, 1200)]
    rows = [row for row in rows if row.owner_type == "user"]
    found = {(row.month.month, row.owner): (row.used_bytes, row.before_bytes, row.change_fraction) for row in rows}
    assert found == {
        (7, "old"): (100, None, None),
        (9, "old"): (200, None, None),
        (9, "both"): (1000, None, None),
        (10, "old"): (0, 200, -1.0),
        (10, "both"): (1500, 1000, 0.5),
        (10, "new"): (30, 0, None),
    }


def test_rows_of_the_page_have_times_in_utc(
    spark: "SparkSession", report: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host with another zone. The two times are an hour apart, when its clocks are set back."""
    from gateway.reports.job.columns import moment
    from gateway.reports.job.write import write_reports
    from gateway.reports.report import Report

    times = [dt.datetime(2026, 11, 1, hour, 30, tzinfo=dt.UTC) for hour in (5, 6)]
    rows = spark.createDataFrame([(int(each.timestamp()) * 1000,) for each in times], "ms long").select(
        moment("ms").alias("at")
    )
    toy = Report(
        name="toy",
        order=1,
        title="",
        question="",
        nothing="",
        sort=("at",),
        columns={},
        build=lambda _: rows,
        plots=lambda _: (),
    )
    tables = report.found.tables
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        (made,) = write_reports(tables, tables, str(tmp_path), lambda _: None, [toy])
    time.tzset()
    assert [row["at"] for row in made.rows] == [each.replace(tzinfo=None) for each in times]
    assert (tmp_path / "csv/toy/part-00000.csv").read_text().split() == [
        "at", "2026-11-01T05:30:00.000Z", "2026-11-01T06:30:00.000Z"
    ]  # fmt: skip


def test_csv_is_safe_and_plain_in_a_spreadsheet(spark: "SparkSession", tmp_path: Path) -> None:
    from gateway.reports.job.spreadsheet import CSV_OPTIONS, cells, csv_line

    begin = {name: f"'{name}" for name in ("=1+1", "+1", "-1", "@SUM(A1)", " =1", "\uff1d1", "\tx")}
    begin |= {f"{sign}=1": f"'{sign}'=1" for sign in "\t\r\n"}
    later = {f"x{sign}=1;": f"x{sign}'=1;" for sign in (";", "\t", "|", "\r", "\n", "; ", ' ;"', ';;" "|')}
    later |= {"a;+1;-b|@c": "a;'+1;'-b|'@c", ";\uff1d": ";'\uff1d"}
    names = ("alice", "a=b", "user-1", 'say "hi", twice', " blank ", "", "two\nlines", "back\\slash", "a;b|c", "a -b", "a;b=c")
    shown = {**begin, **later, **{name: name for name in names}}
    numbers = [1e15, 0.5, -2.25, 100.0, 0.0, 1.23e7, None, 12345678.901, 0.000001]
    rows = [(text, number, 10**17) for text, number in zip(shown, numbers * 4, strict=False)]
    frame = spark.createDataFrame(rows, "name string, amount double, total long")
    cells(frame).coalesce(1).write.options(**CSV_OPTIONS).csv(str(tmp_path / "csv"))
    (file,) = (tmp_path / "csv").glob("*.csv")
    lines = [row.line for row in frame.select(csv_line(frame).alias("line")).collect()]
    assert file.read_bytes().decode() == "".join(f"{line}\n" for line in ["name,amount,total", *lines])
    with file.open(newline="") as text:
        header, *found = csv.reader(text)
    assert header == ["name", "amount", "total"]
    assert [row[0] for row in found] == list(shown.values())
    plain = ["1000000000000000", "0.5", "-2.25", "100", "0", "12300000", "", "12345678.901", "0.000001"]
    assert [row[1] for row in found] == (plain * 4)[: len(rows)]
    assert {row[2] for row in found} == {"100000000000000000"}
