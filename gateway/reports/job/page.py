"""Writes the reports as one HTML page that works offline: first rows, plots, and Plotly itself."""

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from plotly.offline import get_plotlyjs

from gateway.reports.job.headings import HEADINGS
from gateway.reports.job.overview import Overview
from gateway.reports.job.period import shown
from gateway.reports.job.refresh import Refreshed
from gateway.reports.job.write import MadeReport


def page(found: Refreshed, overview: Overview, reports: Sequence[MadeReport], now: dt.datetime) -> str:
    """The page's HTML. `now` is in UTC."""
    first, last = found.hours[0], found.hours[-1]
    end = dt.datetime.combine(last[0], dt.time(last[1])) + dt.timedelta(hours=1)
    gaps = round((end - dt.datetime.combine(first[0], dt.time(first[1]))) / dt.timedelta(hours=1)) - len(found.hours)
    sections: list[Mapping[str, Any]] = [
        {
            "name": "overview",
            "title": "Overview",
            "question": "How much throttling was there, of which kinds, and when?",
            "nothing": "",
            "plots": _safe(overview.plots),
            "rows": None,
        }
    ]
    sections += [
        {
            "name": made.report.name,
            "title": made.report.title,
            "question": made.report.question,
            "nothing": made.report.nothing,
            "explained": made.report.columns,
            "columns": made.columns,
            "headings": {column: HEADINGS[column] for column in made.columns},
            "rows": made.rows,
            "count": made.count,
            "plots": _safe(made.report.plots(made.rows)) if made.rows else [],
        }
        for made in reports
    ]
    data = {
        "period": f"{shown(first)} to {end:%Y-%m-%d %H:%M} UTC" + (f"; {gaps} hours in between have no events" if gaps else ""),
        "made": f"Made by weir report on {now:%Y-%m-%d at %H:%M} UTC from {found.events:,} events. All times are UTC."
        + (f" {found.rejected:,} lines are not valid events: see the folder _rejected." if found.rejected else ""),
        "tiles": [*overview.tiles, ("events", f"{found.events:,}"), ("bad lines", f"{found.rejected:,}")],
        "reports": sections,
    }
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    start, between, end_of_page = template.replace("@PLOTLY@", "@DATA@").split("@DATA@")
    plotly: str = get_plotlyjs()
    return start + _embedded(data) + between + plotly + end_of_page


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that cannot end its script element, even if a client's name contains `</script>`."""
    return json.dumps(data, default=_plain, ensure_ascii=False).replace("<", "\\u003c")


def _plain(value: object) -> str:
    if isinstance(value, dt.datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    return str(value)


def _safe(plots: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
    """Escapes markup: Plotly interprets `<b>` and `<a href>` in labels, and clients choose their names."""
    return [small_table(plot) or _escaped(plot) for plot in plots]


def small_table(plot: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A table in place of a plot whose series have one point at most; None for any other plot."""
    if any(len(trace["x"]) > 1 for trace in plot["data"]):
        return None
    layout = plot["layout"]
    if any(trace.get("orientation") == "h" for trace in plot["data"]):
        unit = layout["xaxis"]["title"]["text"]
        rows = [
            [name, trace.get("name", ""), x] for trace in plot["data"] for name, x in zip(trace["y"], trace["x"], strict=True)
        ]
    else:
        unit = layout["yaxis"]["title"]["text"]
        rows = [[trace["name"], at, y] for trace in plot["data"] for at, y in zip(trace["x"], trace["y"], strict=True)]
    return {"layout": {"title": layout["title"]}, "table": {"columns": ["", "", unit], "rows": rows}}


def _escaped(value: object) -> object:
    if isinstance(value, str):
        return value.replace("&", "&amp;").replace("<", "&lt;")
    if isinstance(value, Mapping):
        return {key: _escaped(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escaped(one) for one in value]
    return value
