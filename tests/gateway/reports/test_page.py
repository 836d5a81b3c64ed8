"""The report page is complete, works offline and escapes client names."""

import datetime as dt
import json

import pytest

from tests.gateway.reports.conftest import SPARK, Run
from tests.gateway.reports.html import Html
from tests.gateway.reports.scenario import HOSTILE

pytestmark = SPARK


@pytest.fixture(scope="module")
def text(report: Run) -> str:
    from gateway.reports.job.overview import overview
    from gateway.reports.job.page import page

    top = overview(report.found.tables, len(report.found.hours))
    return page(report.found, top, report.reports, dt.datetime(2026, 11, 21, 3, tzinfo=dt.UTC))


def test_page_loads_nothing_from_elsewhere(html: Html) -> None:
    assert [link for link in html.links if not link.startswith("#")] == ["data:,"]
    assert len(html.scripts) == 4


def test_page_has_first_rows_of_each_report(html: Html, text: str, report: Run) -> None:
    assert set(html.ids) >= {"overview", *(made.report.name for made in report.reports)}
    for made in report.reports:
        assert len(html.tables[made.report.name].rows) == made.count
    assert "2026-11-20 22:00 to 2026-11-21 01:00 UTC" in text
    assert f"<dt>events</dt><dd>{report.found.events:,}</dd>" in text


def test_index_links_each_report_and_finding(html: Html, report: Run) -> None:
    assert {link.removeprefix("#") for link in html.links if link.startswith("#")} <= set(html.ids)
    for made in report.reports:
        findings = made.report.findings(made.rows)
        lines = [line for line, link in html.index if link == f"#{made.report.name}"]
        assert [line.removesuffix(finding.advice) for line, finding in zip(lines, findings, strict=False)] == [
            finding.text for finding in findings
        ]
        assert len(lines) == max(1, len(findings))
        assert all(any(letter.isdigit() for letter in finding.text) for finding in findings)


def test_bad_lines_are_a_finding(html: Html, report: Run) -> None:
    assert any(line.startswith(f"{report.found.rejected} lines of the ledger are not valid") for line, _ in html.index)


def test_table_cells_have_heads_and_units(html: Html, report: Run) -> None:
    for made in report.reports:
        html.tables[made.report.name].check()


def test_use_divides_by_active_seconds(report: Run) -> None:
    """In the last hour, steady uses 30 kB in 45 s of most minutes, beside greedy with 100 kB in 55 s."""
    from gateway.reports.job.overview import overview

    plots = overview(report.found.tables, len(report.found.hours)).plots
    (use,) = [plot for plot in plots if plot["layout"]["title"]["text"].startswith("Use") and "bytes" in str(plot["layout"])]
    (produce,) = [series for series in use["data"] if series["name"] == "produce"]
    at = produce["x"].index("2026-11-21 00:01")
    assert produce["y"][at] == pytest.approx((100_000 + 30_001) / 55)


def test_hostile_name_cannot_break_the_page(text: str, html: Html) -> None:
    assert HOSTILE.user is not None
    assert HOSTILE.user not in text
    assert any(f"user={HOSTILE.user}" in cell for row in html.tables["client_manners"].rows for cell in row)
    plots = json.loads(html.scripts[0])
    assert "<b>" not in json.dumps(plots), "Plotly would parse the name as markup"
    assert "&lt;b>" in json.dumps(plots)
