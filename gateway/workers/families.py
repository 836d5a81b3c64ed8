"""Merges the parsed metrics of several workers into those of one gateway, and adds metrics of the workers themselves."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.admin.metrics.registry import METRICS
from gateway.admin.metrics.row import Merge, Value
from gateway.config.effective import EffectiveConfig
from gateway.workers.supervised_worker import SupervisedWorker

Families = Sequence[Metric]
_Key = tuple[str, tuple[tuple[str, str], ...]]

MAX_KEPT: Final = 50_000
"""The limit on samples kept of ended workers. Above it, the next ended worker's counters are lost, as after a restart."""

MERGE: Final[Mapping[str, Merge]] = {
    **{row.name.removesuffix("_total"): row.merge for row in METRICS if isinstance(row, Value)},
    "process_start_time_seconds": "min",
    # Each process has its own limit of open files. A sum would hide a full worker behind the supervisor's free files.
    "process_open_fds": "max",
    "process_max_fds": "min",
}
"""The merge of families by their names without `_total`. All others, such as the CPU time of processes, are added."""

_OPERATIONS: Final[Mapping[Merge, Callable[[float, float], float]]] = {
    "sum": lambda one, other: one + other,
    "max": max,
    "min": min,
}


def merge_families(pages: Iterable[Families]) -> list[Metric]:
    """All families of all pages, in the order of their first occurrence. Samples with equal labels are merged."""
    merged: dict[str, tuple[Metric, dict[_Key, float]]] = {}
    for page in pages:
        for family in page:
            _, values = merged.setdefault(family.name, (family, {}))
            operation = _OPERATIONS[MERGE.get(family.name, "sum")]
            for sample in family.samples:
                key = (sample.name, tuple(sample.labels.items()))
                values[key] = operation(values[key], sample.value) if key in values else sample.value
    return [_family(like, values) for like, values in merged.values()]


class Totals:
    """Counters that do not fall when a worker dies, is silent or forgets an idle client, because the last counts are kept.

    Prometheus treats a falling counter as restarted at 0, and would count all other workers' counts again. Counts after a
    worker's last scrape are lost with the worker. A counter that all workers have forgotten ends, and begins at 0 again.
    All workers count the reloads of the config. A new worker goes on from the count of the others.
    """

    def __init__(self) -> None:
        self._gone: list[Metric] = []
        self._forgotten: list[Metric] = []
        self._last: dict[int, Families] = {}
        self._common: dict[_Key, float] = {}
        self._begun_at: dict[int, dict[_Key, float]] = {}

    def seen(self, process: int, page: Families) -> None:
        """Record the current page of a process. Pages of one process come in the order in which it wrote them."""
        if process not in self._last:
            first = _values(_common(page))
            missing = {key: count - first.get(key, 0.0) for key, count in self._common.items()}
            self._begun_at[process] = {key: count for key, count in missing.items() if count > 0}
        page = _raised(page, self._begun_at[process])
        if lost := _lost(self._last.get(process, ()), page):
            self._forgotten = merge_families([self._forgotten, lost])
        self._last[process] = page

    def merged(self, processes: Iterable[int], answered: Iterable[int]) -> list[Metric]:
        """One page from the processes that `answered`, with the last counters of silent and of ended processes."""
        running, fresh = set(processes), set(answered)
        for process in self._last.keys() - running:
            del self._begun_at[process]
            gone = merge_families([self._gone, _counters(self._last.pop(process))])
            if sum(len(family.samples) for family in gone) <= MAX_KEPT:
                self._gone = gone
        if self._forgotten:
            known = {key for page in (*self._last.values(), self._gone) for key in _values(_counters(page))}
            self._forgotten = _chosen(self._forgotten, lambda key, _: key in known)
        silent = [_counters(page) for process, page in self._last.items() if process not in fresh]
        kept = [*silent, self._gone, self._forgotten]
        merged = merge_families([*(self._last[process] for process in self._last if process in fresh), *kept])
        self._common = _values(_common(merged))
        return merged


def _lost(before: Families, now: Families) -> list[Metric]:
    """The counts of `before` that `now` lacks, or that have begun at 0 again."""
    current = _values(_counters(now))
    return _chosen(_counters(before), lambda key, value: current.get(key, -1.0) < value)


def _raised(page: Families, by: Mapping[_Key, float]) -> Families:
    """The page with higher counts. Counts that the page lacks stay away."""
    return [
        _family(family, {key: value + by.get(key, 0.0) for key, value in _values([family]).items()})
        if by and _is_common(family)
        else family
        for family in page
    ]


def _chosen(page: Families, choose: Callable[[_Key, float], bool]) -> list[Metric]:
    """The families of a page with the samples that `choose` wants, without those that have none."""
    chosen = ((family, {key: value for key, value in _values([family]).items() if choose(key, value)}) for family in page)
    return [_family(like, values) for like, values in chosen if values]


def _values(page: Families) -> dict[_Key, float]:
    return {(sample.name, tuple(sample.labels.items())): sample.value for family in page for sample in family.samples}


def _counters(page: Families) -> list[Metric]:
    """The counters and histograms of a page."""
    return [family for family in page if family.type in {"counter", "histogram"}]


def _common(page: Families) -> list[Metric]:
    """The counters that all workers count alike, such as reloads of the config."""
    return [family for family in page if _is_common(family)]


def _is_common(family: Metric) -> bool:
    return family.type == "counter" and MERGE.get(family.name) == "max"


def _family(like: Metric, values: Mapping[_Key, float]) -> Metric:
    family = Metric(like.name, like.documentation, like.type)
    for (name, labels), value in values.items():
        family.add_sample(name, dict(labels), value)
    return family


CONFIG_VERSION: Final = "weir_config_version"


def config_families(effective: EffectiveConfig) -> list[Metric]:
    """The supervisor's own reading of the config file, as metrics."""
    values = {
        CONFIG_VERSION: effective.version,
        "weir_config_last_reload_successful": not effective.refused,
        "weir_config_last_reload_success_timestamp_seconds": effective.last_success_at,
    }
    return [GaugeMetricFamily(row.name, row.help, float(values[row.name])) for row in METRICS if row.name in values]


WorkerFamilies = Families | None
"""A worker's metrics. None: the worker does not answer."""


@dataclass(frozen=True, slots=True)
class WorkerValue:
    """A counter or a gauge, read from a worker and its page. It has no sample while `read` returns None."""

    kind: Literal["counter", "gauge"]
    name: str
    help: str
    read: Callable[[SupervisedWorker, WorkerFamilies], float | None]

    def family(self, workers: Iterable[SupervisedWorker], pages: Mapping[int, Families]) -> Metric:
        """The metric with a sample for each worker. `pages` by process number."""
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = make(self.name, self.help, labels=("worker",))
        for worker in workers:
            value = self.read(worker, pages.get(worker.process))
            if value is not None:
                family.add_metric((str(worker.number),), value)
        return family


def _sum_of(name: str) -> Callable[[SupervisedWorker, WorkerFamilies], float | None]:
    """None for a silent worker: Prometheus would read a counter of 0 as a restart, and count the whole value again."""

    def read(_: SupervisedWorker, page: WorkerFamilies) -> float | None:
        if page is None:
            return None
        return sum(sample.value for family in page for sample in family.samples if sample.name == name)

    return read


WORKER_METRICS: tuple[WorkerValue, ...] = (
    WorkerValue("gauge", "weir_worker_up", "1 while a worker answers.", lambda _, page: float(page is not None)),
    WorkerValue("counter", "weir_worker_restarts_total", "Workers that died and were replaced.",
                lambda worker, _: worker.restarts),
    WorkerValue("gauge", "weir_worker_connections", "Client connections of a worker that answers, as the kernel spreads them.",
                _sum_of("weir_connections")),
    WorkerValue("counter", "weir_worker_cpu_seconds_total", "CPU time of the process of a worker that answers.",
                _sum_of("process_cpu_seconds_total")),
)  # fmt: skip
"""Metrics by worker. With `workers: 1` there are none."""
