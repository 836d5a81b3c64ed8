"""Metrics of notifications. A supervisor reports them for all of its workers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gateway.admin.metrics.row import Labels, Row, Value, one_of, reasons_of
from gateway.admin.metrics.scrape import Scrape


@dataclass(frozen=True, slots=True)
class NotifyReport:
    """`results` counts notifications by target and result; `waiting` are those in the queues, by target."""

    episodes: int
    left_out: int
    results: Mapping[str, Mapping[str, int]]
    waiting: Mapping[str, int]


def _results(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    report = scrape.report(NotifyReport)
    for target, results in report.results.items() if report is not None else ():
        for result, count in results.items():
            yield (target, result), count


_notify = one_of(NotifyReport)

METRICS: tuple[Row, ...] = (
    Value("gauge", "weir_notify_episodes", "Entities near or over their quota, in an episode that notifications report.", (),
          _notify(lambda report: report.episodes)),
    Value("counter", "weir_notify_left_out_total", "Checks of an entity that found no room for its episode.", (),
          _notify(lambda report: report.left_out)),
    Value("counter", "weir_notify_notifications_total", "Notifications by target and result: sent, failed or dropped.",
          ("target", "result"), _results),
    Value("gauge", "weir_notify_waiting", "Notifications that wait to be sent, by target.", ("target",),
          reasons_of(NotifyReport, lambda report: report.waiting)),
)  # fmt: skip
