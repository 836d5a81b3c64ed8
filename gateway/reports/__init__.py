"""`weir report`: a PySpark batch job that turns the throttle ledger of hours or weeks into reports.

Every module of this package that defines `REPORT` is one report; a new module is found by itself. `job` reads the ledger,
stores hourly aggregates and writes the reports. PySpark is imported only when a report runs, so the command line works
without it.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.reports.report import Report

_NO_REPORTS = frozenset({"__main__", "report"})


def all_reports() -> "dict[str, Report]":
    """Every report by name, in the order of the page. Needs PySpark."""
    modules = (each.name for each in iter_modules(__path__) if not each.ispkg and each.name not in _NO_REPORTS)
    found: list[Report] = [import_module(f"{__name__}.{name}").REPORT for name in modules]
    return {report.name: report for report in sorted(found, key=lambda report: report.order)}
