"""The state of a gateway for one scrape."""

from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from gateway.admin.view import AdminView
from gateway.config.effective import EffectiveConfig
from gateway.proxy.counters import Counters
from gateway.quotas.snapshot import ThrottleTotals, UsageRow

Report = TypeVar("Report")


@dataclass(frozen=True, slots=True)
class Scrape:
    """All values of one scrape. They are formatted in steps, and clients are served in between.

    So collections that may change their size are copied; the plain integers of `counters` may go on counting. Reasons that
    deserve an alert begin at 0, because Prometheus's `increase` does not see a series begin at 1.
    """

    rows: list[UsageRow]
    totals: list[ThrottleTotals]
    overflowed: int
    small_quotas: dict[str, int]
    counters: Counters
    rejected: dict[str, int]
    protocol_errors: dict[str, int]
    handshake_failures: dict[str, int]
    proxy_headers: dict[str, int]
    certificate_reloads: dict[str, int]
    usage_saves: dict[str, int]
    task_restarts: dict[str, int]
    authentications: dict[str, int]
    authentication_failures: dict[str, int]
    effective: EffectiveConfig
    reloads: dict[str, int]
    ready: bool
    reports: tuple[object, ...]
    """The features' reports."""

    def report(self, kind: type[Report]) -> Report | None:
        """The report of that class, if a feature has one."""
        return next((report for report in self.reports if isinstance(report, kind)), None)

    @classmethod
    def of(cls, view: AdminView, rows: list[UsageRow], reports: tuple[object, ...]) -> "Scrape":
        return cls(
            rows=rows,
            totals=[*view.engine.throttle_totals(), *chain(*(feature.throttle_totals() for feature in view.features))],
            overflowed=view.engine.overflowed,
            small_quotas=view.engine.small_quotas(),
            counters=view.counters,
            rejected={"broker_unreachable": 0, **view.counters.rejected},
            protocol_errors={"internal": 0, **view.counters.protocol_errors},
            handshake_failures=dict(view.counters.handshake_failures),
            proxy_headers=dict(view.counters.proxy_headers),
            certificate_reloads={"success": 0, "failure": 0, **view.counters.certificate_reloads},
            usage_saves={"success": 0, "failure": 0, **view.counters.usage_saves},
            task_restarts=dict(view.counters.task_restarts),
            authentications=dict(view.counters.authentications),
            authentication_failures=dict(view.counters.authentication_failures),
            effective=view.effective,
            reloads=dict(view.effective.reloads),
            ready=view.not_ready() is None,
            reports=reports,
        )
