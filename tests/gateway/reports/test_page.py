"""The report page is complete, works offline and escapes client names."""

import datetime as dt
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.gateway.reports.conftest import SPARK, Run
from tests.gateway.reports.scenario import HOSTILE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href") and value is not None]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script" and self.scripts:
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def html(report: Run) -> str:
    from gateway.reports.job.overview import overview
    from gateway.reports.job.page import page

    top = overview(report.found.tables, len(report.found.hours))
    return page(report.found, top, report.reports, dt.datetime(2026, 11, 21, 3, tzinfo=dt.UTC))


@pytest.fixture(scope="module")
def elements(html: str) -> Elements:
    found = Elements()
    found.feed(html)
    return found


def test_page_loads_nothing_from_elsewhere(elements: Elements) -> None:
    assert elements.links == ["data:,"]
    assert len(elements.scripts) == 3


def test_page_has_all_rows_and_names_empty_reports(elements: Elements, report: Run) -> None:
    data = json.loads(elements.scripts[0])
    assert [each["name"] for each in data["reports"]] == ["overview", *(made.report.name for made in report.reports)]
    for each, made in zip(data["reports"][1:], report.reports, strict=True):
        assert len(each["rows"]) == made.count
        assert each["plots"]
        assert each["nothing"]
    assert data["period"] == "2026-11-20 22:00 to 2026-11-21 01:00 UTC"
    assert dict(data["tiles"])["events"] == f"{report.found.events:,}"


def test_plot_with_one_point_becomes_a_table() -> None:
    from gateway.reports.job.page import small_table
    from gateway.reports.job.plots import bars, grouped_bars, lines

    over_time = lines("Use", "bytes/s", {"produce": (["10:00"], [7.0]), "fetch": (["10:00"], [8.0])})
    table = {"columns": ["", "", "bytes/s"], "rows": [["produce", "10:00", 7.0], ["fetch", "10:00", 8.0]]}
    assert small_table(over_time) == {"layout": {"title": {"text": "Use"}}, "table": table}
    for plot, row in (
        (bars([("a", 1.0)], "Throttle time", "s"), ["a", "", 1.0]),
        (grouped_bars(["a"], "Limits", "units/s", {"now": [1.0]}), ["a", "now", 1.0]),
    ):
        made = small_table(plot)
        assert made is not None
        assert made["table"]["rows"] == [row]
    assert small_table(lines("Use", "bytes/s", {"produce": (["10:00", "11:00"], [7.0, 8.0])})) is None
    assert small_table(bars([("a", 1.0), ("b", 2.0)], "Throttle time", "s")) is None


def test_hostile_name_cannot_break_the_page(html: str, elements: Elements) -> None:
    assert HOSTILE.user is not None
    assert HOSTILE.user not in html
    assert HOSTILE.user in {row.get("user") for each in json.loads(elements.scripts[0])["reports"][1:] for row in each["rows"]}
    plots = json.dumps([each["plots"] for each in json.loads(elements.scripts[0])["reports"]])
    assert "<b>" not in plots, "Plotly would parse the name as markup"
    assert "&lt;b>" in plots


def test_page_is_written_to_any_hadoop_path(spark: "SparkSession", tmp_path: Path) -> None:
    from gateway.reports.job.hadoop import HadoopFolder

    HadoopFolder(spark, f"file://{tmp_path}").write("report.html", "first, and longer")
    HadoopFolder(spark, str(tmp_path)).write("report.html", "tschüß")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "tschüß"
