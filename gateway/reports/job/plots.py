"""Plotly figures as plain data. The page adds colours and fonts."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from gateway.reports.report import Plot, ReportRow

BARS = 20
"""The limit on bars in one figure; more would be unreadable."""
POINTS = 1000
"""The limit on points of a line, so that a year of hours does not fill the page."""
_MARKERS = 60
"""A line with more points has no markers, which would hide it on a narrow screen."""


def label(row: ReportRow, user: str = "user", client_id: str = "client_id", ip: str = "ip", group: str = "group") -> str:
    """The entity of a row, such as `user=alice, client-id=etl`. The arguments are column names."""
    parts = (("user", row.get(user)), ("client-id", row.get(client_id)), ("ip", row.get(ip)), ("group", row.get(group)))
    return ", ".join(f"{part}={name}" for part, name in parts if name is not None) or "everyone"


def kind_label(row: ReportRow) -> str:
    return f"{row['kind']}: {label(row)}"


def named(row: ReportRow) -> str:
    """The entity in a sentence: `client-id=etl (produce)`."""
    return f"{label(row)} ({row['kind']})"


def bars(amounts: Sequence[tuple[str, float]], title: str, unit: str) -> Plot:
    """The first `BARS` of the (name, amount) pairs as horizontal bars, the first on top."""
    names = _distinct([name for name, _ in amounts[:BARS]])
    return {
        "data": [{"type": "bar", "orientation": "h", "y": names, "x": [amount for _, amount in amounts[:BARS]]}],
        "layout": _bar_layout(title, unit, 110 + 24 * max(3, len(names))),
    }


def grouped_bars(
    names: Sequence[str], title: str, unit: str, series: Mapping[str, Sequence[float]], *, log: bool = False
) -> Plot:
    """For each name, one horizontal bar of every series."""
    layout = _bar_layout(title, unit, 170 + (20 + 8 * len(series)) * max(3, len(names)), log=log)
    bar = {"type": "bar", "orientation": "h", "y": _distinct(names)}
    return {
        "data": [bar | {"name": name, "x": amounts} for name, amounts in series.items()],
        "layout": layout | {"barmode": "group"},
    }


def lines(title: str, unit: str, series: Mapping[str, tuple[Sequence[Any], Sequence[Any]]], *, log: bool = False) -> Plot:
    """One line over time for each series of (times, values). Long series show the maximum of several points each."""
    longest = max((len(x) for x, _ in series.values()), default=0)
    step = ceil(longest / POINTS)
    if step > 1:
        title = f"{title} (maximum of {step} points each)"
        series = {name: _thinned(x, y, step) for name, (x, y) in series.items()}
    mode = "lines+markers" if longest <= _MARKERS else "lines"
    return {
        "data": [
            {"type": "scatter", "mode": mode, "name": name, "x": list(x), "y": list(y)} for name, (x, y) in series.items()
        ],
        "layout": {"title": {"text": title}, "yaxis": _value_axis(unit, log=log), "height": 380},
    }


def _thinned(x: Sequence[Any], y: Sequence[Any], step: int) -> tuple[Sequence[Any], Sequence[Any]]:
    highest = [max(range(start, min(start + step, len(y))), key=lambda at: y[at]) for start in range(0, len(y), step)]
    return [x[at] for at in highest], [y[at] for at in highest]


def _bar_layout(title: str, unit: str, height: int, *, log: bool = False) -> dict[str, Any]:
    return {
        "title": {"text": title},
        "xaxis": _value_axis(unit, log=log),
        "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
        "height": height,
    }


def _value_axis(unit: str, *, log: bool) -> dict[str, Any]:
    return {"title": {"text": unit}} | ({"type": "log", "dtick": "D2"} if log else {"rangemode": "tozero"})


def _distinct(names: Sequence[str]) -> list[str]:
    """Plotly merges bars of the same name, so repeated names get zero-width spaces."""
    seen: dict[str, int] = {}
    distinct = []
    for name in names:
        seen[name] = seen.get(name, -1) + 1
        distinct.append(name + "\u200b" * seen[name])
    return distinct
