"""Every figure of every report equals the one that plain Python computes from the scenario."""

import csv
from typing import TYPE_CHECKING, Any

import pytest

from tests.gateway.reports.conftest import SPARK, Run
from tests.gateway.reports.expected import EXPECTED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(
        ({key: row[key] for key in sorted(row)} for row in rows), key=lambda row: [str(value) for value in row.values()]
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_report_has_expected_figures(spark: "SparkSession", report: Run, name: str) -> None:
    rows = [row.asDict() for row in spark.read.parquet(str(report.out / name)).collect()]
    assert in_order(rows) == in_order(EXPECTED[name]())


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
        rows = list(csv.DictReader(text, escapechar="\\"))
    assert list(rows[0]) == list(made.columns)
    assert len(rows) == made.count
    number = next(column for column in made.columns if isinstance(made.rows[0][column], (int, float)))
    assert float(rows[0][number].replace("true", "1").replace("false", "0")) == made.rows[0][number]
