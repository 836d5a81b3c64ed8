"""The metrics of several workers as those of one gateway: pure functions over what Prometheus's parser makes of their pages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from prometheus_client.core import Metric

from gateway.admin.metrics.registry import METRICS
from gateway.admin.metrics.row import Merge, Value

Families = Sequence[Metric]
_Key = tuple[str, tuple[tuple[str, str], ...]]

MAX_KEPT: Final = 50_000
"""Samples of counters that are kept of workers that are gone; what is past it begins anew, as after a restart."""

MERGE: Final[Mapping[str, Merge]] = {
    **{row.name.removesuffix("_total"): row.merge for row in METRICS if isinstance(row, Value)},
    "process_start_time_seconds": "min",
}
"""How families are merged, by their names without `_total`; all others, those of processes among them, are added."""

_OPERATIONS: Final[Mapping[Merge, Callable[[float, float], float]]] = {
    "sum": lambda one, other: one + other,
    "max": max,
    "min": min,
}


def merge_families(pages: Iterable[Families], merge: Mapping[str, Merge] = MERGE) -> list[Metric]:
    """One family for each that any of the pages has, as they are met; samples with the same labels are one."""
    merged: dict[str, tuple[Metric, dict[_Key, float]]] = {}
    for page in pages:
        for family in page:
            _, values = merged.setdefault(family.name, (family, {}))
            operation = _OPERATIONS[merge.get(family.name, "sum")]
            for sample in family.samples:
                key = (sample.name, tuple(sample.labels.items()))
                values[key] = operation(values[key], sample.value) if key in values else sample.value
    return [_family(like, values) for like, values in merged.values()]


class Totals:
    """Counters that don't fall when a worker dies: what it had counted is kept.

    Prometheus takes a counter that falls for one that began at 0 again: of a sum, all that the others have ever counted
    would look like news. What a worker counted after its last scrape is lost with it.
    """

    def __init__(self) -> None:
        self._gone: list[Metric] = []
        self._last: dict[int, Families] = {}

    def seen(self, process: int, page: Families) -> None:
        """What a process, by its id, shows now."""
        self._last[process] = page

    def merged(self, processes: Iterable[int], answered: Iterable[int]) -> list[Metric]:
        """One page of those that have `answered`, with the counters of the other `processes` and of those that are gone."""
        running, fresh = set(processes), set(answered)
        for process in self._last.keys() - running:
            gone = merge_families([self._gone, _added(self._last.pop(process))])
            if sum(len(family.samples) for family in gone) <= MAX_KEPT:
                self._gone = gone
        silent = [_added(page) for process, page in self._last.items() if process not in fresh]
        return merge_families([*(self._last[process] for process in self._last if process in fresh), *silent, self._gone])


def _added(page: Families) -> list[Metric]:
    """What of a page only ever grows and is added up."""
    return [family for family in page if family.type in {"counter", "histogram"} and MERGE.get(family.name, "sum") == "sum"]


def _family(like: Metric, values: Mapping[_Key, float]) -> Metric:
    family = Metric(like.name, like.documentation, like.type)
    for (name, labels), value in values.items():
        family.add_sample(name, dict(labels), value)
    return family
