"""Prometheus metrics: a row of `METRICS` each, in the module of what it tells of. Everything is read at scrape time; nothing is
counted here."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from gateway.admin.metrics import clients, process, quotas
from gateway.admin.metrics.row import Row
from gateway.admin.metrics.scrape import Scrape
from gateway.features.catalogue import FEATURES

METRICS: tuple[Row, ...] = (
    *quotas.METRICS,
    *clients.METRICS,
    *(row for feature in FEATURES for row in feature.metrics),
    *process.METRICS,
)
"""Every metric. Labels are bounded: buckets by the engine, the rest by the program itself."""


class _Families:
    """A collector, as prometheus_client wants it."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        for row in METRICS:
            yield row.family(self._scrape)


def exposition(scrape: Scrape, accept: str) -> tuple[bytes, str]:
    """A page of metrics in the format that the `Accept` header asks for, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(scrape))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
