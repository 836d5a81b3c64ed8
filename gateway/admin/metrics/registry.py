"""All Prometheus metrics, read at scrape time. Rows are in the module of their subject; the gateway's own rows are here."""

from collections.abc import Callable
from copy import copy
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gateway.admin.metrics import clients, quotas
from gateway.admin.metrics.row import Given, Row, Value, one, reasons
from gateway.admin.metrics.scrape import Scrape
from gateway.admin.pieces import in_pieces
from gateway.features.catalogue import FEATURES
from gateway.steps import Steps
from gateway.version import weir_version

_END: Final = b"# EOF\n"
"""The last line of OpenMetrics."""

_PROCESS: tuple[Row, ...] = (
    Value("counter", "weir_config_reloads_total", "Changed config files, by result.", ("result",),
          reasons(lambda scrape: scrape.effective.reloads), merge="max"),
    Value("counter", "weir_task_restarts_total", "Background tasks that failed and were started again.", ("task",),
          reasons(lambda scrape: scrape.counters.task_restarts)),
    Value("gauge", "weir_config_last_reload_successful", "0 if the last changed config file was refused, otherwise 1.", (),
          one(lambda scrape: not scrape.effective.refused), merge="min"),
    Value("gauge", "weir_config_last_reload_success_timestamp_seconds", "Time at which a config file was last accepted.", (),
          one(lambda scrape: scrape.effective.last_success_at), merge="min"),
    Value("gauge", "weir_config_version", "Version of the config in effect, from 1.", (),
          one(lambda scrape: scrape.effective.version), merge="max"),
    Value("gauge", "weir_ready", "1 if /readyz answers 200.", (),
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


_TOGETHER: Final = 4
"""The samples that one step formats."""


def exposition(scrape: Scrape, accept: str) -> Steps[tuple[list[bytes], str]]:
    """A page of metrics in the format that the `Accept` header asks for, and its content type."""
    encode, content_type = choose_encoder(accept)
    page: list[bytes] = []
    for row in METRICS:
        family = yield from row.family(scrape)
        yield from _formatted(family, encode, page)
    for family in ProcessCollector(registry=None).collect():
        yield from _formatted(family, encode, page)
    page.append(encode(CollectorRegistry()))
    pieces = yield from in_pieces(page)
    return pieces, content_type


def _formatted(family: Metric, encode: Callable[[Collector], bytes], page: list[bytes]) -> Steps[None]:
    """Append the metric to the page. Only its first part keeps the lines about the metric, and no part the end of a page.

    Only a line feed ends a line: a carriage return may be part of a client's name.
    """
    for start in range(0, max(len(family.samples), 1), _TOGETHER):
        part = copy(family)
        part.samples = family.samples[start : start + _TOGETHER]
        lines = [line + b"\n" for line in encode(Given([part])).split(b"\n")[:-1]]
        page.append(b"".join(line for line in lines if not line.startswith(b"# ") or (not start and line != _END)))
        yield
