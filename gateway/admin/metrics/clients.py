"""Metrics of clients: connections, handshakes, authentication, requests."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import add

from gateway.admin.metrics.row import Distribution, Histogram, Labels, Row, Value, one, reasons
from gateway.admin.metrics.scrape import Scrape
from gateway.proxy.counters import LATENCY_SLOTS
from protocol.api_keys import APIS

_SHOWN_SLOTS = range(8, LATENCY_SLOTS, 2)
"""Every second slot from 0.24 ms to 64 s: fine enough for a quantile, few enough for sixty APIs."""


def api_name(key: int) -> str:
    """Kafka's name of an API, its number where it has none."""
    return APIS[key].name if key in APIS else str(key)


def _requests(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    for key, count in enumerate(scrape.counters.requests):
        if count:
            yield (api_name(key),), count


def _upstream_latencies(scrape: Scrape) -> Iterator[tuple[Labels, Histogram]]:
    counters = scrape.counters
    yield from _histograms(counters.latency, counters.latency_seconds)


def _client_latencies(scrape: Scrape) -> Iterator[tuple[Labels, Histogram]]:
    counters = scrape.counters
    slots = [list(map(add, *pair)) for pair in zip(counters.latency, counters.wait_moves, strict=True)]
    yield from _histograms(slots, list(map(add, counters.latency_seconds, counters.wait_seconds)))


def _histograms(latency: Sequence[Sequence[int]], seconds: Sequence[float]) -> Iterator[tuple[Labels, Histogram]]:
    bounds = tuple(2**slot / 2**20 for slot in _SHOWN_SLOTS)
    for key, slots in enumerate(latency):
        if any(slots):
            edges = [0, *(slot + 1 for slot in _SHOWN_SLOTS), len(slots)]
            counts = tuple(sum(slots[low:high]) for low, high in pairwise(edges))
            yield (api_name(key),), Histogram(bounds, counts, seconds[key])


def _certificate_expiries(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    for key, at in sorted(scrape.counters.certificate_expiries.items()):
        yield (key,), at


METRICS: tuple[Row, ...] = (
    Value("gauge", "weir_muted_connections", "Client connections that are muted now, because of a quota.", (),
          one(lambda scrape: scrape.counters.muted)),
    Value("counter", "weir_member_mutes_total", "Mutes that were kept short, because the connection keeps a member in its"
          " group, or locks on the records of a share group.", (), one(lambda scrape: scrape.counters.member_mutes)),
    Value("gauge", "weir_connections", "Client connections open now.", (), one(lambda scrape: scrape.counters.connections)),
    Value("gauge", "weir_brokers_without_port", "Brokers that clients of a listener can't reach now, because no port of its"
          " broker_ports is left or can be bound.", ("listener",),
          reasons(lambda scrape: scrape.counters.brokers_without_port), merge="max"),
    Value("counter", "weir_connections_accepted_total", "Client connections accepted.", (),
          one(lambda scrape: scrape.counters.connections_total)),
    Value("counter", "weir_broker_connections_reused_total", "Connections to brokers that a client got from one that had gone,"
          " among many short connections.", (), one(lambda scrape: scrape.counters.connections_reused)),
    Value("counter", "weir_protocol_errors_total", "Client connections closed because of invalid requests.", ("reason",),
          reasons(lambda scrape: scrape.counters.protocol_errors, "internal")),
    Value("counter", "weir_proxy_headers_total", "Connections of listeners with proxy_protocol, by header: v1, v2, none, or"
          " local (a balancer's own connection).", ("header",), reasons(lambda scrape: scrape.counters.proxy_headers)),
    Value("gauge", "weir_tls_handshakes", "TLS handshakes with clients in progress now.", (),
          one(lambda scrape: scrape.counters.handshakes)),
    Value("counter", "weir_tls_handshake_failures_total", "TLS handshakes with clients that failed.", ("reason",),
          reasons(lambda scrape: scrape.counters.handshake_failures)),
    Value("counter", "weir_tls_reloads_total", "Attempts to load changed certificate files, by result.", ("result",),
          reasons(lambda scrape: scrape.counters.certificate_reloads, "success", "failure"), merge="max"),
    Value("gauge", "weir_tls_certificate_expiry_timestamp_seconds", "Time at which the first certificate expires, of the"
          " file that a config key names and connections use now.", ("config_key",), _certificate_expiries, merge="min"),
    Value("counter", "weir_authentications_total", "SASL authentications that a broker accepted.", ("mechanism",),
          reasons(lambda scrape: scrape.counters.authentications)),
    Value("counter", "weir_authentication_failures_total", "SASL authentications that failed.", ("reason",),
          reasons(lambda scrape: scrape.counters.authentication_failures)),
    Value("counter", "weir_requests_total", "Requests by API.", ("api",), _requests),
    Distribution("weir_request_seconds", "Time from a request sent upstream to its response.", ("api",), _upstream_latencies),
    Distribution(
        "weir_client_request_seconds",
        "Time from a request's arrival in Weir to its response, with its wait in Weir before it was sent upstream.",
        ("api",),
        _client_latencies,
    ),
)  # fmt: skip
