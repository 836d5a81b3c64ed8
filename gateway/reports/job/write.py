"""Builds the reports from the aggregates, and writes each as Parquet and as CSV."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampNTZType, TimestampType

from gateway.reports.job.folders import folder
from gateway.reports.job.hadoop import literal
from gateway.reports.job.spreadsheet import CSV_OPTIONS, cells, csv_line
from gateway.reports.job.threads import side_by_side
from gateway.reports.report import Report, Tables

FOR_PAGE = 20_000
"""The limit on rows of a report that the page's findings and plots come from. The folders have all rows."""
_LINE = "_csv_line"
_AT_ONCE = 3
"""The number of reports that are built at the same time."""


@dataclass(frozen=True)
class MadeReport:
    """A written report: its columns, its first `FOR_PAGE` rows, and the number of all rows."""

    report: Report
    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    count: int


def write_reports(
    tables: Tables,
    few_rows: Tables,
    out: str,
    progress: Callable[[str], None],
    reports: Sequence[Report],
    beside: Callable[[], None] = lambda: None,
) -> Sequence[MadeReport]:
    """Write the reports into folders of their names under `out`, and return them in the same order.

    The reports without `many_rows` read `few_rows`: the same tables, maybe in another session. `beside` is called in a thread
    beside the reports.
    """
    made: dict[str, MadeReport] = {}

    def make(report: Report) -> None:
        rows = report.build(tables if report.many_rows else few_rows)
        order = [F.desc_nulls_last(key[1:]) if key.startswith("-") else F.asc_nulls_first(key) for key in report.sort]
        one_file: DataFrame = rows.repartition(1).sortWithinPartitions(*order)
        one_file.write.mode("overwrite").parquet(f"{out}/{report.name}")
        spark = rows.sparkSession
        written = spark.read.schema(one_file.schema).parquet(literal(f"{out}/{report.name}"))
        lines = written.withColumn(_LINE, csv_line(written))
        first = [row.asDict() for row in _in_utc(lines).limit(FOR_PAGE).collect()]
        csv_lines = [row.pop(_LINE) for row in first]
        if len(first) < FOR_PAGE:
            count = len(first)
            _write_csv(spark, f"{out}/csv", report.name, [",".join(written.columns), *csv_lines])
        else:
            count = written.count()
            cells(written).coalesce(1).write.mode("overwrite").options(**CSV_OPTIONS).csv(f"{out}/csv/{report.name}")
        progress(f"{report.name}: {count:,} rows")
        made[report.name] = MadeReport(report, written.columns, first, count)

    # Those that take long begin first: the ones with many rows, and the last ones of the page.
    ordered = sorted(reports, key=lambda report: (report.many_rows, report.order), reverse=True)
    works: list[Callable[[], None]] = [*(partial(make, report) for report in ordered), beside]
    side_by_side(*works, threads=_AT_ONCE)
    return [made[report.name] for report in reports]


def _in_utc(rows: DataFrame) -> DataFrame:
    """The same rows, with times that PySpark collects in UTC. It would convert timestamps to this machine's zone."""
    times = [field.name for field in rows.schema if isinstance(field.dataType, TimestampType)]
    return rows.withColumns({name: F.col(name).cast(TimestampNTZType()) for name in times})


def _write_csv(spark: SparkSession, path: str, name: str, csv_lines: Sequence[str]) -> None:
    """Write a CSV file that the driver has in memory. A Spark job for it would take a third of a CPU second."""
    folder(spark, path).delete(name)
    folder(spark, f"{path}/{name}").write("part-00000.csv", "".join(f"{line}\n" for line in csv_lines))
