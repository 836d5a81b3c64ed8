"""Prometheus metrics: a row of `METRICS` each. Everything is read at scrape time; nothing is counted here."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from math import inf
from typing import Literal

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from gateway.observe.build import weir_version
from gateway.observe.effective import EffectiveConfig
from gateway.observe.view import AdminView
from gateway.quotas.kinds import KINDS
from gateway.quotas.snapshot import THROTTLE_BOUNDS, ThrottleTotals, UsageRow
from gateway.session.counters import LATENCY_BUCKETS, Counters
from protocol.api_keys import APIS

Labels = tuple[str, ...]

_MAX_LABEL = 200
_LATENCY_SLOTS = range(8, LATENCY_BUCKETS, 2)
"""Every second slot from 0.24 ms to 64 s: fine enough for a quantile, few enough for sixty APIs."""


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity, as a registry needs it
class Scrape:
    """Everything that one scrape shows, read in the event loop; the text is made of it in a thread.

    What can change its size meanwhile is copied; the plain integers of `counters` may go on counting.
    """

    rows: list[UsageRow]
    totals: list[ThrottleTotals]
    overflowed: int
    counters: Counters
    rejected: dict[str, int]
    protocol_errors: dict[str, int]
    effective: EffectiveConfig
    reloads: dict[str, int]

    @classmethod
    def of(cls, view: AdminView) -> "Scrape":
        """Read a gateway."""
        return cls(
            rows=view.engine.snapshot(view.monotonic()),
            totals=view.engine.throttle_totals(),
            overflowed=view.engine.overflowed,
            counters=view.counters,
            rejected=dict(view.counters.rejected),
            protocol_errors=dict(view.counters.protocol_errors),
            effective=view.effective,
            reloads=dict(view.effective.reloads),
        )

    def collect(self) -> Iterator[Metric]:
        """All metric families, as prometheus_client asks a collector for them."""
        for row in METRICS:
            yield row.family(self)


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts[i]` values up to `bounds[i]`, not cumulative; the last count, without a bound, is of what was larger."""

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
    """A counter or a gauge: its name, what it means, and how it is read from a scrape."""

    kind: Literal["counter", "gauge"]
    name: str
    help: str
    labels: Labels
    read: Callable[[Scrape], Iterable[tuple[Labels, float]]]

    def family(self, scrape: Scrape) -> Metric:
        """The metric with all its samples. Samples whose labels are the same are one: Prometheus refuses a page with two."""
        merged: dict[Labels, float] = {}
        for labels, value in self.read(scrape):
            key = tuple(map(label, labels))
            if key in merged:
                value = merged[key] + value if self.kind == "counter" else max(merged[key], value)
            merged[key] = value
        family = (CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily)(
            self.name, self.help, labels=self.labels
        )
        for key, value in merged.items():
            family.add_metric(key, value)
        return family


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram: its name, what it means, and how it is read from a scrape."""

    name: str
    help: str
    labels: Labels
    read: Callable[[Scrape], Iterable[tuple[Labels, Histogram]]]

    def family(self, scrape: Scrape) -> Metric:
        """The metric with all its samples."""
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, histogram in self.read(scrape):
            family.add_metric(labels, histogram.buckets(), histogram.total)
        return family


def label(text: str) -> str:
    """A label value that can't hurt: a client chooses its own name, of up to 32 KiB and any bytes."""
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= _MAX_LABEL:
        return text
    return f"{text[:_MAX_LABEL]}...{blake2b(text.encode(), digest_size=6).hexdigest()}"


def api_name(key: int) -> str:
    """Kafka's name of an API, its number where it has none."""
    return APIS[key].name if key in APIS else str(key)


def _per_bucket(
    read: Callable[[UsageRow], float | None], *, unit: str | None = None
) -> Callable[[Scrape], Iterator[tuple[Labels, float]]]:
    """A value for each bucket that has one."""

    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        for row in scrape.rows:
            if unit is None or KINDS[row.kind].unit == unit:
                value = read(row)
                if value is not None:
                    yield (row.kind, row.user, row.client_id), value

    return values


def _early(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    for row in scrape.rows:
        yield (row.user, row.client_id), row.early_total


def _requests(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    for key, count in enumerate(scrape.counters.requests):
        if count:
            yield (api_name(key),), count


def _reasons(read: Callable[[Scrape], dict[str, int]]) -> Callable[[Scrape], Iterator[tuple[Labels, float]]]:
    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        for reason, count in sorted(read(scrape).items()):
            yield (reason,), count

    return values


def _one(read: Callable[[Scrape], float]) -> Callable[[Scrape], list[tuple[Labels, float]]]:
    return lambda scrape: [((), read(scrape))]


def _throttle_times(scrape: Scrape) -> Iterator[tuple[Labels, Histogram]]:
    for total in scrape.totals:
        yield (total.kind,), Histogram(THROTTLE_BOUNDS, total.buckets, total.seconds)


def _latencies(scrape: Scrape) -> Iterator[tuple[Labels, Histogram]]:
    counters = scrape.counters
    bounds = tuple(2**slot / 2**20 for slot in _LATENCY_SLOTS)
    for key, slots in enumerate(counters.latency):
        if any(slots):
            edges = [0, *(slot + 1 for slot in _LATENCY_SLOTS), len(slots)]
            counts = tuple(sum(slots[low:high]) for low, high in pairwise(edges))
            yield (api_name(key),), Histogram(bounds, counts, counters.latency_seconds[key])


_BUCKET: Labels = ("kind", "user", "client_id")

METRICS: tuple[Value | Distribution, ...] = (
    Value("counter", "weir_quota_bytes_total", "Bytes charged to a bucket of a byte quota.", _BUCKET,
          _per_bucket(lambda row: row.amount_total, unit="bytes")),
    Value("gauge", "weir_quota_usage", "What a bucket uses now, in units per second.", _BUCKET,
          _per_bucket(lambda row: row.rate)),
    Value("gauge", "weir_quota_limit", "What a bucket may use, in units per second; absent where it is unlimited.", _BUCKET,
          _per_bucket(lambda row: row.limit)),
    Value("gauge", "weir_quota_used_ratio", "Fraction of the quota used (KIP-13), 1.0 at the quota.", _BUCKET,
          _per_bucket(lambda row: None if row.limit is None else row.used_ratio)),
    Value("gauge", "weir_quota_tokens", "Tokens left in a bucket, below 0 while it is throttled.", _BUCKET,
          _per_bucket(lambda row: row.tokens)),
    Value("counter", "weir_throttled_requests_total", "Requests answered with a throttle time of Weir's own.", _BUCKET,
          _per_bucket(lambda row: row.throttled_total)),
    Value("counter", "weir_throttle_seconds_total", "Sum of these throttle times in seconds.", _BUCKET,
          _per_bucket(lambda row: row.throttle_seconds_total)),
    Distribution("weir_throttle_time_seconds", "Throttle times in seconds.", ("kind",), _throttle_times),
    Value("counter", "weir_early_requests_total", "Requests that came before the client's throttle time was over.",
          ("user", "client_id"), _early),
    Value("counter", "weir_quota_overflowed_total", "Times a client had to share a bucket because there are too many.", (),
          _one(lambda scrape: scrape.overflowed)),
    Value("gauge", "weir_quota_enforced", "1 where quotas are enforced, 0 where they are only measured.", (),
          _one(lambda scrape: scrape.effective.config.quotas.enforce)),
    Value("gauge", "weir_muted_connections", "Client connections that are not read from now, because of a quota.", (),
          _one(lambda scrape: scrape.counters.muted)),
    Value("gauge", "weir_connections", "Client connections open now.", (), _one(lambda scrape: scrape.counters.connections)),
    Value("counter", "weir_connections_accepted_total", "Client connections accepted.", (),
          _one(lambda scrape: scrape.counters.connections_total)),
    Value("counter", "weir_connections_rejected_total", "Client connections refused or closed by a limit.", ("reason",),
          _reasons(lambda scrape: scrape.rejected)),
    Value("counter", "weir_protocol_errors_total", "Client connections closed for what they sent.", ("reason",),
          _reasons(lambda scrape: scrape.protocol_errors)),
    Value("counter", "weir_requests_total", "Requests by API.", ("api",), _requests),
    Distribution("weir_request_seconds", "Time from a request sent upstream to its response.", ("api",), _latencies),
    Value("counter", "weir_config_reloads_total", "Changed config files, by what came of them.", ("result",),
          _reasons(lambda scrape: scrape.reloads)),
    Value("gauge", "weir_config_last_reload_success_timestamp_seconds", "When a config file was last accepted.", (),
          _one(lambda scrape: scrape.effective.last_success_at)),
    Value("gauge", "weir_config_version", "Version of the config in effect, from 1.", (),
          _one(lambda scrape: scrape.effective.version)),
    Value("gauge", "weir_build_info", "1, labelled with the version.", ("version",), lambda _: [((weir_version(),), 1)]),
)  # fmt: skip
"""Every metric. Labels are bounded: buckets by the engine, the rest by the program itself."""


def exposition(scrape: Scrape, accept: str) -> tuple[bytes, str]:
    """A page of metrics in the format that the `Accept` header asks for, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(scrape)
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
