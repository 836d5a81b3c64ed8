"""All Prometheus metrics, read at scrape time. Rows are in the module of their subject; the gateway's own rows are here."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from gateway.admin.metrics import clients, quotas
from gateway.admin.metrics.row import Row, Value, one, reasons
from gateway.admin.metrics.scrape import Scrape
from gateway.features.catalogue import FEATURES
from gateway.version import weir_version

_PROCESS: tuple[Row, ...] = (
    Value("counter", "weir_config_reloads_total", "Changed config files, by result.", ("result",),
          reasons(lambda scrape: scrape.reloads), merge="max"),
    Value("counter", "weir_task_restarts_total", "Background tasks that failed and were started again.", ("task",),
          reasons(lambda scrape: scrape.task_restarts)),
    Value("gauge", "weir_config_last_reload_successful", "0 if the last changed config file was refused, otherwise 1.", (),
          one(lambda scrape: scrape.effective.last is None or scrape.effective.last.success), merge="min"),
    Value("gauge", "weir_config_last_reload_success_timestamp_seconds", "Time at which a config file was last accepted.", (),
          one(lambda scrape: scrape.effective.last_success_at), merge="min"),
    Value("gauge", "weir_config_version", "Version of the config in effect, from 1.", (),
          one(lambda scrape: scrape.effective.version), merge="max"),
    Value("gauge", "weir_ready", "1 while /readyz says yes.", (),
          one(lambda scrape: scrape.ready), merge="max"),
    Value("gauge", "weir_build_info", "1, labelled with the version.", ("version",),
          lambda _: [((weir_version(),), 1)], merge="max"),
)  # fmt: skip

METRICS: tuple[Row, ...] = (
    *quotas.METRICS,
    *clients.METRICS,
    *(row for feature in FEATURES for row in feature.metrics),
    *_PROCESS,
)
"""Every metric. Labels are bounded: names of buckets by the engine, all others by the program itself."""


class _Families:
    """A collector of prometheus_client."""

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
