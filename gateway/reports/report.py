"""What a report is, and the tables that it may be made from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame

ENTITY = ("kind", "user", "client_id", "ip")
"""What makes an entity of a quota kind; a part is null where its quota's level does not look at it."""

ReportRow = Mapping[str, Any]
Plot = Mapping[str, Any]
"""A Plotly figure: `data` and `layout`."""


class Tables(Protocol):
    """The hourly aggregates of the hours that are asked for; what their columns are stands in `gateway.reports.job.hours`."""

    @property
    def entities(self) -> DataFrame:
        """A row for each hour, entity and matched quota."""

    @property
    def totals(self) -> DataFrame:
        """`entities` summed up over the hours and quotas: a row for each entity."""

    @property
    def minutes(self) -> DataFrame:
        """A row for each minute and kind."""

    def table(self, name: str) -> DataFrame:
        """One of the hourly tables by its name."""


@dataclass(frozen=True)
class Report:
    """One report.

    `name` is that of its folders, `question` what it answers. `build` makes it, sorted by `sort` (`-column`: descending);
    all its rows are written, the page shows the first ones. `plots` draws them. `columns` explains the columns that don't
    explain themselves. `nothing` is what the page says if there are no rows.
    """

    name: str
    order: int
    title: str
    question: str
    nothing: str
    sort: Sequence[str]
    columns: Mapping[str, str]
    build: Callable[[Tables], DataFrame]
    plots: Callable[[Sequence[ReportRow]], Sequence[Plot]]
