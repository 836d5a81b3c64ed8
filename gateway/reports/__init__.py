"""What the ledger tells over hours and weeks, as a PySpark batch job: `weir report`.

One module here is one report (`REPORT`), found by being in this package. `job` reads the ledger, keeps hourly aggregates and
writes what the reports make of them. Nothing here needs PySpark until a report runs, so that the command line works without it.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.reports.report import Report

_NO_REPORTS = frozenset({"__main__", "report"})


def all_reports() -> "dict[str, Report]":
    """Every report by its name, in the order in which the page shows them. Needs PySpark."""
    modules = (each.name for each in iter_modules(__path__) if not each.ispkg and each.name not in _NO_REPORTS)
    found: list[Report] = [import_module(f"{__name__}.{name}").REPORT for name in modules]
    return {report.name: report for report in sorted(found, key=lambda report: report.order)}
