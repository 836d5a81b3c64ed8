"""The page's tables: columns with headings in words, and values as text with their units."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard

from gateway.quotas.kinds import BYTES
from gateway.reports.job.headings import HEADINGS
from gateway.reports.job.phrases import amount, number, percent, rate
from gateway.reports.job.plots import label
from gateway.reports.report import Report, ReportRow

_ENTITIES: Final = {
    "entity": ("user", "client_id", "ip", "group"),
    "neighbour": ("by_user", "by_client_id", "by_ip"),
}
"""The page shows the parts of an entity in one column."""
_UNITS_OF_ROW: Final = (" (units)", " (units/s)", " (bytes)", " (bytes/s)")
"""The values of these columns carry the unit, so the page's heading does not."""
_FRACTION: Final = "(fraction)"
"""The page shows fractions as percentages."""
_LONG_WORD: Final = 16
"""Longer words, such as names of clients, may break anywhere; otherwise they would push the table out of the screen."""


@dataclass(frozen=True)
class PageColumn:
    """A column of the page, from the columns `names` of the report.

    `explained` may be empty. `style` is the CSS class of its cells: `number`, `time`, `long` or none.
    """

    names: Sequence[str]
    heading: str
    explained: str
    style: str = ""


@dataclass(frozen=True)
class Cell:
    """A value as text; `order` is its number if it has one. An empty text stands for no value."""

    text: str
    order: float | None


@dataclass(frozen=True)
class PageTable:
    """The first rows of a report. `empty` are the headings of the columns that have no values but 0, and are left out."""

    columns: Sequence[PageColumn]
    rows: Sequence[Sequence[Cell]]
    empty: Sequence[str]


def page_table(report: Report, names: Sequence[str], rows: Sequence[ReportRow]) -> PageTable:
    """The table of some rows of a report with the columns `names`."""
    columns = [(column, [_cell(report, column, row) for row in rows]) for column in _columns(report, names)]
    filled = [(replace(column, style=_style(column, cells)), cells) for column, cells in columns if _has_values(cells)]
    return PageTable(
        [column for column, _ in filled],
        list(zip(*(cells for _, cells in filled), strict=True)),
        [column.heading for column, cells in columns if not _has_values(cells)],
    )


def _has_values(cells: Sequence[Cell]) -> bool:
    return any(cell.text and cell.order != 0 for cell in cells)


def _style(column: PageColumn, cells: Sequence[Cell]) -> str:
    if all(cell.order is not None for cell in cells if cell.text):
        return "number"
    if any("\n" in cell.text for cell in cells):
        return "time"
    words = (word for cell in cells for word in cell.text.split())
    return "long" if column.heading in _ENTITIES or any(len(word) > _LONG_WORD for word in words) else ""


def _columns(report: Report, names: Sequence[str]) -> list[PageColumn]:
    columns = []
    for name in names:
        entity = next((entity for entity, parts in _ENTITIES.items() if name in parts), None)
        if entity is None:
            heading = HEADINGS[name]
            for unit in _UNITS_OF_ROW:
                heading = heading.removesuffix(unit)
            heading = heading.replace(_FRACTION, "(%)")
            columns.append(PageColumn([name], heading, report.columns.get(name, "")))
        elif all(column.heading != entity for column in columns):
            parts = [part for part in _ENTITIES[entity] if part in names]
            explained = "; ".join(report.columns[part] for part in parts if part in report.columns)
            columns.append(PageColumn(parts, entity, explained))
    return columns


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _cell(report: Report, column: PageColumn, row: Mapping[str, Any]) -> Cell:
    name = column.names[0]
    if column.heading in _ENTITIES:
        parts = {part.removeprefix("by_"): part for part in column.names}
        return Cell("" if all(row[part] is None for part in column.names) else label(row, **parts), None)
    value = row[name]
    if name == "hour":
        return Cell(f"{value:02d}:00", None)
    if _is_number(value):
        return Cell(_number_text(report, name, value, row.get("kind")), value)
    return Cell(_text(value).replace("_", " ") if name in ("kind", "what") else _text(value), None)


def _number_text(report: Report, name: str, value: float, kind: str | None) -> str:
    heading = HEADINGS[name]
    if heading.endswith("(units)"):
        return amount(value, kind, report.unit)
    if heading.endswith("(units/s)"):
        return rate(value, kind, report.unit)
    if heading.endswith("(bytes)"):
        return BYTES.text(value)
    if heading.endswith("(bytes/s)"):
        return f"{BYTES.text(value)}/s"
    if heading.endswith(_FRACTION):
        return percent(value).removesuffix(" %")
    if heading.endswith("(s)"):
        return f"{value / 1000 if name.endswith('_ms') else value:,.1f}"
    return number(value)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dt.datetime):
        return f"{value:%Y-%m-%d}\n{value:%H:%M:%S}"
    return str(value)
