"""Writes the reports as one HTML page that works offline: findings, first rows, plots, and Plotly itself."""

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from gateway.quotas.kinds import BYTES
from gateway.reports.job.cells import PageTable, page_table
from gateway.reports.job.overview import Overview
from gateway.reports.job.period import shown
from gateway.reports.job.phrases import amount, counted, number
from gateway.reports.job.refresh import Refreshed
from gateway.reports.job.write import MadeReport
from gateway.reports.report import Finding, Plot

ON_PAGE: Final = 100
"""The limit on rows that the page has of a report."""
AT_FIRST, AT_FIRST_NARROW = 20, 5
"""The rows that the page shows before a click, on a wide and on a narrow screen (as cards)."""


@dataclass(frozen=True)
class _Section:
    """A section of the page. `left_out` names the rows that the page does not have, and the folder that has them."""

    name: str
    title: str
    question: str
    nothing: str = ""
    table: PageTable | None = None
    left_out: str = ""
    plots: Sequence[Mapping[str, Any]] = ()
    findings: Sequence[Finding] = ()
    quiet: str = ""
    """One line about a report without findings."""


def page(found: Refreshed, overview: Overview, reports: Sequence[MadeReport], now: dt.datetime) -> str:
    """The page's HTML. `now` is in UTC."""
    first, last = found.hours[0], found.hours[-1]
    end = dt.datetime.combine(last[0], dt.time(last[1])) + dt.timedelta(hours=1)
    gaps = round((end - dt.datetime.combine(first[0], dt.time(first[1]))) / dt.timedelta(hours=1)) - len(found.hours)
    sections = [_overview(found, overview), *map(_section, reports)]
    # autoescape: clients choose their names, so a name may contain markup.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["css"] = _css_string
    template = environment.from_string(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(
        period=f"{shown(first)} to {end:%Y-%m-%d %H:%M} UTC"
        + (f"; {counted(gaps, 'hour', 'hours')} in between without events" if gaps else ""),
        made=f"Made by weir report on {now:%Y-%m-%d at %H:%M} UTC from {found.events:,} events. All times are UTC."
        + (f" {found.rejected:,} lines are not valid events: see the folder _rejected." if found.rejected else ""),
        tiles=[*overview.tiles, ("events", f"{found.events:,}"), ("bad lines", f"{found.rejected:,}")],
        sections=sections,
        plots=_embedded([[plot for plot in section.plots if "data" in plot] for section in sections]),
        plotly=Markup(get_plotlyjs()),  # noqa: S704
        at_first=AT_FIRST,
        at_first_narrow=AT_FIRST_NARROW,
    )


def _overview(found: Refreshed, overview: Overview) -> _Section:
    bad = Finding(
        f"{counted(found.rejected, 'line of the ledger is', 'lines of the ledger are')} not valid events.",
        "The folder _rejected has each line with its file and the reason.",
    )
    files = found.unreadable
    cut = Finding(
        f"{counted(len(files), 'file of the ledger', 'files of the ledger')} can't be read to the end: {', '.join(files[:5])}"
        + (", ..." if len(files) > 5 else "."),
        "The reports lack the rest of the lines. Put whole copies in place: the next run reads these hours again.",
    )
    hours = found.incomplete
    incomplete = Finding(
        f"The reports lack new files of {counted(len(hours), 'hour', 'hours')}, because earlier files are gone: "
        + "; ".join(hours[:5])
        + ("; ..." if len(hours) > 5 else "."),
        "The reports keep the earlier figures. Put the earlier files back: the next run reads these hours again.",
    )
    return _Section(
        "overview",
        "Overview",
        "How much throttling was there, of which kinds, and when?",
        plots=_safe(overview.plots),
        findings=[*([cut] if files else []), *([incomplete] if hours else []), *([bad] if found.rejected else [])],
        quiet="each line of the ledger is a valid event.",
    )


def _section(made: MadeReport) -> _Section:
    report, rows = made.report, made.rows
    findings = report.findings(rows) if rows else []
    if made.count > len(rows):
        part = f"These figures are of the first {len(rows):,} of {made.count:,} rows."
        findings = [replace(finding, advice=f"{finding.advice} {part}") for finding in findings]
    left_out = max(0, made.count - ON_PAGE)
    return _Section(
        report.name,
        report.title,
        report.question,
        nothing=report.nothing,
        table=page_table(report, made.columns, rows[:ON_PAGE]) if rows else None,
        left_out=f"{counted(left_out, 'more row is', 'more rows are')} in csv/{report.name}" if left_out else "",
        plots=_safe(report.plots(rows)) if rows else [],
        findings=findings,
        quiet="" if findings else f"no finding in {counted(made.count, 'row', 'rows')}." if rows else report.nothing,
    )


def _embedded(data: object) -> Markup:
    """JSON that cannot end its script element, even if a client's name contains `</script>`."""
    return Markup(json.dumps(data, default=str, ensure_ascii=False).replace("<", "\\u003c"))  # noqa: S704


def _css_string(text: str) -> Markup:
    return Markup('"' + "".join(f"\\{ord(one):x} " if one in '\\"<>' else one for one in text) + '"')  # noqa: S704


def _safe(plots: Sequence[Plot]) -> Sequence[Any]:
    """Escapes markup: Plotly interprets `<b>` and `<a href>` in labels, and clients choose their names."""
    return [small_table(plot) or _escaped(plot) for plot in plots]


def small_table(plot: Plot) -> Plot | None:
    """A table in place of a plot whose series have one point at most; None for any other plot."""
    if any(len(trace["x"]) > 1 for trace in plot["data"]):
        return None
    horizontal = any(trace.get("orientation") == "h" for trace in plot["data"])
    axes = ("y", "x") if horizontal else ("x", "y")
    unit = plot["layout"]["xaxis" if horizontal else "yaxis"]["title"]["text"]
    heads = ["name" if horizontal else "time (UTC)", "series", unit]
    rows = [
        [name, trace.get("name", ""), _measured(value, unit)]
        for trace in plot["data"]
        for name, value in zip(*(trace[axis] for axis in axes), strict=True)
    ]
    if not any(series for _, series, _ in rows):
        heads, rows = [heads[0], heads[2]], [[name, value] for name, _, value in rows]
    return {"layout": {"title": plot["layout"]["title"]}, "table": {"columns": heads, "rows": rows}}


def _measured(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{amount(value, None, BYTES)}/s" if unit == f"{BYTES.name} per second" else number(round(value, 2))


def _escaped(value: object) -> object:
    if isinstance(value, str):
        return value.replace("&", "&amp;").replace("<", "&lt;")
    if isinstance(value, Mapping):
        return {key: _escaped(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escaped(one) for one in value]
    return value
