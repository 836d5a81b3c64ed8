"""The parts of a report, and the tables that it can read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame

from gateway.quotas.kinds import Unit
from gateway.reports.job.period import Hour

ENTITY = ("kind", "user", "client_id", "ip", "group")
"""The columns that identify an entity. A column is null if the entity's quota level does not use it."""

ReportRow = Mapping[str, Any]
Plot = Mapping[str, Any]
"""A Plotly figure: `data` and `layout`."""


class Tables(Protocol):
    """The hourly aggregates of the requested hours; `gateway.reports.job.hours` describes the columns."""

    @property
    def totals(self) -> DataFrame:
        """One row for each entity: the hourly table `entities` summed over hours and quotas."""

    @property
    def minutes(self) -> DataFrame:
        """One row for each minute and kind."""

    @property
    def rates(self) -> DataFrame:
        """For each entity, the number of minutes in each slot of the use. A pair may have several rows."""

    @property
    def owner_days(self) -> DataFrame:
        """The bytes of each owner and kind on each date; `gateway.reports.job.owners` describes the columns."""

    @property
    def owner_months(self) -> DataFrame:
        """The bytes of each owner and kind in each month, see `gateway.reports.job.owners`. A month may have several rows."""

    @property
    def names(self) -> DataFrame:
        """The dictionary of the ids: one row for each entity and matched quota, maybe also of other hours."""

    @property
    def clients(self) -> DataFrame:
        """The `user` and `client_id` of each `client`."""

    def table(self, name: str, hours: Iterable[Hour] | None = None) -> DataFrame:
        """An hourly table by its name; with `hours`, only those of the requested hours."""


@dataclass(frozen=True)
class Finding:
    """A sentence with a number about the rows of a report, and the next step for the reader."""

    text: str
    advice: str


def _no_findings(_: Sequence[ReportRow]) -> Sequence[Finding]:
    return []


@dataclass(frozen=True)
class Report:
    """One report.

    `build` makes the rows and `plots` the figures. All rows are written, ordered by `sort` (`-column` means descending); the
    page shows the first ones. `name` is the name of the output folders. `columns` explains columns with unclear names. The
    page shows `nothing` if there are no rows. `findings` of the rows are the page's index. `unit` is the unit of amounts if the
    rows have no `kind`. A report with `many_rows` reads far more rows than it writes, so generated code pays.
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
    findings: Callable[[Sequence[ReportRow]], Sequence[Finding]] = _no_findings
    unit: Unit | None = None
    many_rows: bool = False
