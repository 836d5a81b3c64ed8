"""Plotly figures as plain data; colours and fonts are the page's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.reports.report import Plot, ReportRow

BARS = 20
"""So many bars can be read."""


def label(row: ReportRow, user: str = "user", client_id: str = "client_id", ip: str = "ip") -> str:
    """Who it is: `user=alice, client-id=etl`."""
    parts = (("user", row.get(user)), ("client-id", row.get(client_id)), ("ip", row.get(ip)))
    return ", ".join(f"{what}={name}" for what, name in parts if name is not None) or "everyone"


def bars(
    rows: Sequence[ReportRow],
    title: str,
    unit: str,
    value: Callable[[ReportRow], float | None],
    name: Callable[[ReportRow], str],
) -> Plot:
    """The first rows as horizontal bars, the first on top."""
    shown = [(name(row), value(row)) for row in rows[:BARS]]
    names = _told_apart([one for one, _ in shown])
    return {
        "data": [{"type": "bar", "orientation": "h", "y": names, "x": [amount for _, amount in shown]}],
        "layout": {
            "title": {"text": title},
            "xaxis": {"title": {"text": unit}, "rangemode": "tozero"},
            "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
            "height": 110 + 24 * max(3, len(shown)),
        },
    }


def lines(title: str, unit: str, series: Mapping[str, tuple[Sequence[Any], Sequence[Any]]], *, log: bool = False) -> Plot:
    """A line for each series (its x and y) over time."""
    return {
        "data": [
            {"type": "scatter", "mode": "lines+markers", "name": name, "x": list(x), "y": list(y)}
            for name, (x, y) in series.items()
        ],
        "layout": {
            "title": {"text": title},
            "yaxis": {"title": {"text": unit}} | ({"type": "log", "dtick": 1} if log else {"rangemode": "tozero"}),
            "height": 380,
        },
    }


def _told_apart(names: Sequence[str]) -> list[str]:
    """Plotly adds up bars of the same name; zero-width spaces keep them apart."""
    seen: dict[str, int] = {}
    apart = []
    for name in names:
        seen[name] = seen.get(name, -1) + 1
        apart.append(name + "\u200b" * seen[name])
    return apart
