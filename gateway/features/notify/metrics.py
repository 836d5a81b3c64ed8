"""Metrics of notifications. A supervisor reports them for all of its workers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client.core import Metric

from gateway.admin.metrics.row import Labels, Read, Row, Value
from gateway.admin.metrics.scrape import Scrape
from gateway.steps import at_once


@dataclass(frozen=True, slots=True)
class NotifyReport:
    """`results` counts notifications by target and result; `waiting` are those in the queues, by target."""

    episodes: int
    left_out: int
    results: Mapping[str, Mapping[str, int]]
    waiting: Mapping[str, int]


Samples = Iterable[tuple[Labels, float]]


def _results(report: NotifyReport) -> Iterator[tuple[Labels, float]]:
    for target, results in report.results.items():
        for result, count in results.items():
            yield (target, result), count


_TABLE: Final[Sequence[tuple[Literal["counter", "gauge"], str, str, Labels, Callable[[NotifyReport], Samples]]]] = (
    (
        "gauge",
        "weir_notify_episodes",
        "Entities near or over their quota, in an episode that notifications report.",
        (),
        lambda report: [((), report.episodes)],
    ),
    (
        "counter",
        "weir_notify_left_out_total",
        "Checks of an entity that found no room for its episode.",
        (),
        lambda report: [((), report.left_out)],
    ),
    (
        "counter",
        "weir_notify_notifications_total",
        "Notifications by target and result: sent, failed or dropped.",
        ("target", "result"),
        _results,
    ),
    (
        "gauge",
        "weir_notify_waiting",
        "Notifications that wait to be sent, by target.",
        ("target",),
        lambda report: [((target,), count) for target, count in report.waiting.items()],
    ),
)


def _read(samples: Callable[[NotifyReport], Samples]) -> Read:
    def read(scrape: Scrape) -> Samples:
        report = scrape.report(NotifyReport)
        return () if report is None else samples(report)

    return read


METRICS: tuple[Row, ...] = tuple(
    Value(kind, name, text, labels, _read(samples)) for kind, name, text, labels, samples in _TABLE
)


def families(report: NotifyReport) -> list[Metric]:
    """The metrics of a process that has no scrape of its own."""
    return [
        at_once(Value(kind, name, text, labels, lambda _: ()).filled(samples(report)))
        for kind, name, text, labels, samples in _TABLE
    ]
