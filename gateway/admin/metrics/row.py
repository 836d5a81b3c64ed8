"""The definition of a metric: a row of `METRICS` with a function that reads its samples from a scrape."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import inf
from typing import Literal, TypeVar, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.admin.metrics.scrape import Reports, Scrape
from gateway.steps import Steps, at_once

Labels = tuple[str, ...]
Read = Callable[[Scrape], Iterable[tuple[Labels, float]]]
"""Returns each sample's labels and value."""

Merge = Literal["sum", "max", "min"]

ReportT = TypeVar("ReportT")

_MAX_LABEL = 200


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts[i]` values up to `bounds[i]`, not cumulative. The last count, without a bound, has all larger values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    def buckets(self) -> list[tuple[str, float]]:
        """Prometheus's buckets: cumulative, the last one at +Inf."""
        running = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*self.bounds, inf), self.counts, strict=True):
            running += count
            buckets.append(("+Inf" if bound == inf else repr(bound), float(running)))
        return buckets


@dataclass(frozen=True, slots=True)
class Value:
    """A counter or a gauge. A sample may lack the last labels.

    `merge` makes one value from several workers' values: the sum of parts, or the extreme of values that should be equal.
    """

    kind: Literal["counter", "gauge"]
    name: str
    help: str
    labels: Labels
    read: Read
    merge: Merge = "sum"

    def family(self, scrape: Scrape) -> Steps[Metric]:
        """The metric with all its samples. Equal labels are merged, because Prometheus refuses a page with two such samples."""
        merged: dict[Labels, float] = {}
        for labels, value in self.read(scrape):
            key = tuple(map(label, labels))
            if key in merged:
                value = merged[key] + value if self.kind == "counter" else max(merged[key], value)
            merged[key] = value
            yield
        family = (CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily)(
            self.name, self.help, labels=self.labels
        )
        for key, value in merged.items():
            family.add_sample(self.name, dict(zip(self.labels, key, strict=False)), value)
            yield
        return family


def deprecated(name: str, row: Value, use: str | None = None) -> Value:
    """`row` under its old `name`, for one minor version. `use` is the replacement, by default the row's own name."""
    return replace(row, name=name, help=f"Deprecated since 0.2.0: use {use or row.name}. {row.help}")


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram."""

    name: str
    help: str
    labels: Labels
    read: Callable[[Scrape], Iterable[tuple[Labels, Histogram]]]

    def family(self, scrape: Scrape) -> Steps[Metric]:
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, histogram in self.read(scrape):
            family.add_metric(labels, histogram.buckets(), histogram.total)
            yield
        return family


Row = Value | Distribution


class Given(Collector):
    """A collector of metrics that are made already."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def families(rows: Iterable[Row], *reports: object) -> list[Metric]:
    """The metrics of a process that has only reports. The rows read nothing else of a scrape."""
    return [at_once(row.family(cast(Scrape, Reports(reports)))) for row in rows]


def label(text: str) -> str:
    """A harmless label value: a client chooses its own name, of up to 32 KiB and any bytes."""
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= _MAX_LABEL:
        return text
    return f"{text[:_MAX_LABEL]}...{blake2b(text.encode(), digest_size=6).hexdigest()}"


def one(read: Callable[[Scrape], float]) -> Read:
    """One sample without labels."""
    return lambda scrape: [((), read(scrape))]


def reasons(read: Callable[[Scrape], Mapping[str, int]], *first: str) -> Read:
    """One sample for each reason, result or other name.

    Reasons that deserve an alert begin at 0 (`first`), because Prometheus's `increase` does not see a series begin at 1.
    """

    def samples(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        for reason, count in sorted({**dict.fromkeys(first, 0), **read(scrape)}.items()):
            yield (reason,), count

    return samples


def one_of(kind: type[ReportT]) -> Callable[[Callable[[ReportT], float]], Read]:
    """Make readers of one sample without labels from one kind of report; a gateway without such a report has no sample."""

    def reader(read: Callable[[ReportT], float]) -> Read:
        def samples(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
            found = scrape.report(kind)
            if found is not None:
                yield (), read(found)

        return samples

    return reader


def reasons_of(kind: type[ReportT], read: Callable[[ReportT], Mapping[str, int]]) -> Read:
    """The same as `reasons`, from one kind of report."""

    def counts(scrape: Scrape) -> Mapping[str, int]:
        found = scrape.report(kind)
        return {} if found is None else read(found)

    return reasons(counts)
