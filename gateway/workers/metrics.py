"""The metrics of workers as such: a row of `WORKER_METRICS` each, labelled with the worker's number."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.workers.families import Families
from gateway.workers.place import WorkerPlace

Page = Families | None
"""A worker's metrics; None: it does not answer."""


@dataclass(frozen=True, slots=True)
class WorkerValue:
    """A counter or a gauge: its name, what it means, and how it is read from a worker's place and its own page."""

    kind: Literal["counter", "gauge"]
    name: str
    help: str
    read: Callable[[WorkerPlace, Page], float]

    def family(self, places: Iterable[WorkerPlace], pages: Mapping[int, Families]) -> Metric:
        """The metric with a sample for each worker; `pages` by the number of the process."""
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = make(self.name, self.help, labels=("worker",))
        for place in places:
            family.add_metric((str(place.number),), self.read(place, pages.get(place.process)))
        return family


def _sum_of(name: str) -> Callable[[WorkerPlace, Page], float]:
    return lambda _, page: sum(sample.value for family in page or () for sample in family.samples if sample.name == name)


WORKER_METRICS: tuple[WorkerValue, ...] = (
    WorkerValue("gauge", "weir_worker_up", "1 while a worker answers.", lambda _, page: float(page is not None)),
    WorkerValue("counter", "weir_worker_restarts_total", "Workers that ended by themselves and were replaced.",
                lambda place, _: place.restarts),
    WorkerValue("gauge", "weir_worker_connections", "Client connections of a worker; the kernel spreads them.",
                _sum_of("weir_connections")),
    WorkerValue("counter", "weir_worker_cpu_seconds_total", "CPU time of a worker's process.",
                _sum_of("process_cpu_seconds_total")),
)  # fmt: skip
"""Every metric of them; with `workers: 1` there are none."""
