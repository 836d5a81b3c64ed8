"""The page of a report over 5,000 entities: its size, its rows, its colours and its widths."""

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.gateway.reports.html import Html

if TYPE_CHECKING:
    from gateway.reports.report import Plot

pytest.importorskip("pyspark")

ENTITIES = 5_000
MORE = 1_000_000
NAME = "a-name-of-a-team-and-of-its-application-" * 5


def entity_row(number: int) -> dict[str, Any]:
    """Values for each column of the reports on entities."""
    from gateway.reports.job.headings import HEADINGS

    at = dt.datetime(2026, 11, 20, 22, number % 60)  # noqa: DTZ001
    row: dict[str, Any] = {name: float(number) for name in HEADINGS}
    return row | {
        "kind": ("produce", "fetch", "controller_mutation")[number % 3],
        "user": f"{NAME}{number}",
        "client_id": None if number % 2 else f"client-{number}",
        "ip": None,
        "quota": "user=<default>",
        "address": "10.0.0.1",
        "api": "Produce",
        "since": at,
        "until": at,
        "throttled": number,
        "what": "early_sends",
        "noted": 0,
    }


@pytest.fixture(scope="module")
def text() -> str:
    from gateway.reports import all_reports
    from gateway.reports.job.overview import Overview
    from gateway.reports.job.page import page
    from gateway.reports.job.plots import lines
    from gateway.reports.job.refresh import Refreshed
    from gateway.reports.job.state import DoneHour
    from gateway.reports.job.write import MadeReport

    rows = [entity_row(number) for number in range(ENTITIES)]
    year = [f"2026-01-01 {hour:05d}" for hour in range(365 * 24)]
    plots = [lines("Use", "bytes per second", {f"kind-{kind}": (year, range(len(year))) for kind in range(5)})]
    kinds = ("kind", "user", "client_id", "ip")
    columns = {
        "top_throttled": (*kinds, "quota", "limit", "throttled", "throttle_ms", "share", "noted", "noted_ms", "since", "until"),
        "utilisation": (*kinds, "quota", "limit", "mean_utilisation", "throttled_minutes", "throttled_fraction", "used_amount"),
        "right_sizing": (*kinds, "limit_now", "throttled_minutes", "limit_for_0_percent", "demand_estimate"),
        "mutations": (*kinds, "limit", "mutations", "throttled", "throttle_ms"),
        "client_manners": ("what", *kinds, "address", "count"),
    }
    made = [
        MadeReport(report, columns[name], rows, MORE if name == "mutations" else len(rows))
        if name in columns
        else MadeReport(report, [], [], 0)
        for name, report in all_reports().items()
    ]
    hours = [(dt.date(2026, 11, 20), 22), (dt.date(2026, 11, 21), 0)]
    done = {hours[0]: DoneHour("batch-1", frozenset(), 1, 0, frozenset({"weir-cut.jsonl.gz"}))}
    found = Refreshed(None, done, hours, 1_000_000, 0, 2, 1_000_000, {hours[1]: ["a.gz", "b.gz"]})  # type: ignore[arg-type]
    return page(found, Overview([("entities throttled", "5,000")], plots), made, dt.datetime(2026, 11, 21, 3, tzinfo=dt.UTC))


def test_page_names_unreadable_files(text: str) -> None:
    assert "1 file of the ledger can&#39;t be read to the end: weir-cut.jsonl.gz of 2026-11-20 22:00." in text


def test_page_names_missing_files(text: str) -> None:
    assert "new files of 1 hour, because earlier files are gone: 2026-11-21 00:00 lacks a.gz, b.gz." in text


def test_page_stays_below_six_megabytes(text: str) -> None:
    assert len(text.encode()) < 6_000_000


def test_left_out_rows_are_counted_with_their_folder(text: str, html: Html) -> None:
    from gateway.reports.job.page import ON_PAGE

    for name in ("top_throttled", "utilisation", "right_sizing"):
        assert len(html.tables[name].rows) == ON_PAGE
        html.tables[name].check()
        assert f"{ENTITIES - ON_PAGE:,} more rows are in csv/{name}." in text


def test_findings_cover_rows_that_the_page_leaves_out(html: Html) -> None:
    assert any(line.startswith("4,999 entities were throttled for ") for line, _ in html.index)


def test_findings_of_a_part_say_so(html: Html) -> None:
    (line,) = [line for line, link in html.index if link == "#mutations"]
    assert line.endswith(f" These figures are of the first {ENTITIES:,} of {MORE:,} rows.")
    assert sum("These figures" in line for line, _ in html.index) == 1


def test_report_without_finding_says_so_in_a_line(html: Html) -> None:
    lines = [line for line, link in html.index if link == "#volumes"]
    assert lines == ["Volumes: The volume quota never changed its state in this period."]


def test_nothing_has_a_fixed_width(html: Html) -> None:
    assert html.widths == []
    rules = re.sub(r"max-width|\(min\([^)]*\)", "", html.style)
    fixed = [float(size) * {"px": 1, "rem": 16}[unit] for size, unit in re.findall(r"width: ([\d.]+)(px|rem)", rules)]
    assert fixed
    assert max(fixed) <= 160
    unwrapped = re.findall(r"^ *(.*) {[^}]*white-space: nowrap", html.style, re.MULTILINE)
    assert unwrapped == [".title a", ".rows:not(.tight) td.number"], "the script adds `tight` where the table is too wide"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_enough_contrast(html: Html, scheme: str) -> None:
    """WCAG 2.1 asks for 4.5:1."""
    blocks = re.findall(r":root {([^}]*)}", html.style)
    colours = dict(re.findall(r"(--\w+): (#\w{6})", blocks[["light", "dark"].index(scheme)]))
    for ground in ("--page", "--card", "--stripe"):
        for ink in ("--text", "--soft", "--accent"):
            light, dark = sorted((luminance(colours[ground]), luminance(colours[ink])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (ground, ink)


def luminance(colour: str) -> float:
    """Return the relative luminance of sRGB as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_long_line_keeps_its_maxima() -> None:
    from gateway.reports.job.plots import POINTS, lines

    count = POINTS * 3 + 1
    plot = lines("Use", "bytes", {"produce": (range(count), [at % 3 for at in range(count)])})
    (series,) = plot["data"]
    assert len(series["x"]) <= POINTS
    assert plot["layout"]["title"]["text"] == "Use (maximum of 4 points each)"
    assert set(series["y"][:-1]) == {2}


def test_plot_with_one_point_becomes_a_table() -> None:
    from gateway.reports.job.page import small_table
    from gateway.reports.job.plots import bars, grouped_bars, lines

    over_time = lines("Use", "bytes per second", {"produce": (["10:00"], [7.0]), "fetch": (["10:00"], [2048.0])})
    heads = ["time (UTC)", "series", "bytes per second"]
    table = {"columns": heads, "rows": [["10:00", "produce", "7 B/s"], ["10:00", "fetch", "2.00 KiB/s"]]}
    assert small_table(over_time) == {"layout": {"title": {"text": "Use"}}, "table": table}
    assert _rows(bars([("a", 1.5)], "Throttle time", "s")) == [["a", "1.5"]]
    assert _rows(grouped_bars(["a"], "Limits", "units/s", {"now": [1.0]})) == [["a", "now", "1"]]
    assert small_table(lines("Use", "bytes/s", {"produce": (["10:00", "11:00"], [7.0, 8.0])})) is None
    assert small_table(bars([("a", 1.0), ("b", 2.0)], "Throttle time", "s")) is None


def _rows(plot: "Plot") -> list[list[str]]:
    from gateway.reports.job.page import small_table

    table = small_table(plot)
    assert table is not None
    rows: list[list[str]] = table["table"]["rows"]
    return rows


def test_columns_join_names_and_leave_out_zeros() -> None:
    from gateway.reports import all_reports
    from gateway.reports.job.cells import page_table

    names = ("kind", "user", "client_id", "ip", "limit", "throttle_ms", "share", "noted", "address", "since", "api")
    rows = [dict.fromkeys(names) | {"kind": "controller_mutation", "user": "etl", "client_id": "", "limit": 2.0, "noted": 0}]
    rows += [dict.fromkeys(names) | {"kind": "fetch", "ip": "10.0.0.1", "limit": 2048.0, "throttle_ms": 1550, "share": 0.125}]
    table = page_table(all_reports()["top_throttled"], names, rows)
    heads = [column.heading for column in table.columns]
    assert [dict(zip(heads, (cell.text for cell in row), strict=True)) for row in table.rows] == [
        {
            "quota kind": "controller mutation",
            "entity": "user=etl, client-id=",
            "limit": "2 partitions/s",
            "throttle time (s)": "",
            "share of throttle time (%)": "",
        },
        {
            "quota kind": "fetch",
            "entity": "ip=10.0.0.1",
            "limit": "2.00 KiB/s",
            "throttle time (s)": "1.6",
            "share of throttle time (%)": "12.5",
        },
    ]
    assert [column.style for column in table.columns] == ["", "long", "number", "number", "number"]
    assert table.empty == ["throttles not enforced", "client address", "first (UTC)", "API"]
