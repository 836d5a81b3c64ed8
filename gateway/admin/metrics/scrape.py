"""The state of a gateway for one scrape."""

from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from gateway.admin.view import AdminView
from gateway.config.effective import EffectiveConfig
from gateway.proxy.counters import Counters
from gateway.quotas.snapshot import ThrottleTotals, UsageRow

ReportT = TypeVar("ReportT")


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports of a process. The agent and the supervisor have nothing else that metrics read."""

    reports: tuple[object, ...]

    def report(self, kind: type[ReportT]) -> ReportT | None:
        """The report of that class, if there is one."""
        return next((report for report in self.reports if isinstance(report, kind)), None)


@dataclass(frozen=True, slots=True)
class Scrape(Reports):
    """All values of one scrape. They are formatted in steps, and clients are served in between.

    `counters` and `effective` may go on counting. So a row copies a collection of theirs before its first sample.
    """

    rows: list[UsageRow]
    totals: list[ThrottleTotals]
    overflowed: int
    small_quotas: dict[str, int]
    counters: Counters
    effective: EffectiveConfig
    ready: bool

    @classmethod
    def of(cls, view: AdminView, rows: list[UsageRow], reports: tuple[object, ...]) -> "Scrape":
        return cls(
            rows=rows,
            totals=[*view.engine.throttle_totals(), *chain(*(feature.throttle_totals() for feature in view.features))],
            overflowed=view.engine.overflowed,
            small_quotas=view.engine.small_quotas(),
            counters=view.counters,
            effective=view.effective,
            ready=view.not_ready() is None,
            reports=reports,
        )
