"""Prometheus metrics: a row of `METRICS` each. Everything is read at scrape time; nothing is counted here."""

from collections.abc import Callable, Iterable, Iterator, Mapping
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
from gateway.quotas.connections import Gate
from gateway.quotas.kinds import KINDS
from gateway.quotas.sharing.report import SharingReport
from gateway.quotas.snapshot import THROTTLE_BOUNDS, ThrottleTotals, UsageRow
from gateway.quotas.topics import TopicRow, TopicsReport
from gateway.quotas.volumes.report import VolumesReport
from gateway.quotas.volumes.state import VolumeRow, VolumeState
from gateway.session.counters import LATENCY_BUCKETS, Counters
from gateway.state.logged_quotas import QuotaLogReport
from protocol.api_keys import APIS

Labels = tuple[str, ...]
Merge = Literal["sum", "max", "min"]

_MAX_LABEL = 200
_MAX_VOLUMES = 1_000
_LATENCY_SLOTS = range(8, LATENCY_BUCKETS, 2)
"""Every second slot from 0.24 ms to 64 s: fine enough for a quantile, few enough for sixty APIs."""


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity, as a registry needs it
class Scrape:
    """Everything that one scrape shows, read in the event loop; the text is made of it in a thread.

    What can change its size meanwhile is copied; the plain integers of `counters` may go on counting. Reasons whose first
    occurrence is worth an alert are there from the start, at 0: Prometheus's `increase` does not see a series begin at 1.
    """

    rows: list[UsageRow]
    totals: list[ThrottleTotals]
    overflowed: int
    small_quotas: dict[str, int]
    listeners: Mapping[str, Gate]
    held: int
    counters: Counters
    rejected: dict[str, int]
    protocol_errors: dict[str, int]
    handshake_failures: dict[str, int]
    certificate_reloads: dict[str, int]
    usage_saves: dict[str, int]
    authentications: dict[str, int]
    authentication_failures: dict[str, int]
    effective: EffectiveConfig
    reloads: dict[str, int]
    ready: bool
    volumes: VolumesReport | None
    topics: TopicsReport | None
    sharing: SharingReport | None
    quota_log: QuotaLogReport | None

    @classmethod
    def of(cls, view: AdminView) -> "Scrape":
        """Read a gateway."""
        return cls(
            rows=view.engine.snapshot(view.monotonic()),
            totals=view.engine.throttle_totals(),
            overflowed=view.engine.overflowed,
            small_quotas=view.engine.small_quotas(),
            listeners=view.admission.quotas.listeners,
            held=view.admission.held,
            counters=view.counters,
            rejected={"broker_unreachable": 0, **view.counters.rejected},
            protocol_errors={"internal": 0, **view.counters.protocol_errors},
            handshake_failures=dict(view.counters.handshake_failures),
            certificate_reloads={"success": 0, "failure": 0, **view.counters.certificate_reloads},
            usage_saves={"success": 0, "failure": 0, **view.counters.usage_saves},
            authentications=dict(view.counters.authentications),
            authentication_failures=dict(view.counters.authentication_failures),
            effective=view.effective,
            reloads=dict(view.effective.reloads),
            ready=view.not_ready() is None,
            volumes=view.volumes(),
            topics=view.topics(),
            sharing=view.sharing(),
            quota_log=view.quota_log(),
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
    """A counter or a gauge: its name, what it means, and how it is read from a scrape. A sample may lack the last labels.

    `merge` makes one value of those of several workers: what each has a part of is added; of what each should say alike, the
    highest or the lowest holds.
    """

    kind: Literal["counter", "gauge"]
    name: str
    help: str
    labels: Labels
    read: Callable[[Scrape], Iterable[tuple[Labels, float]]]
    merge: Merge = "sum"

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
            family.add_sample(self.name, dict(zip(self.labels, key, strict=False)), value)
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
                    yield (row.kind, row.user, row.client_id, *((row.ip,) if row.ip else ())), value

    return values


def _early(read: Callable[[UsageRow], float]) -> Callable[[Scrape], Iterator[tuple[Labels, float]]]:
    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        for row in scrape.rows:
            if not row.ip:
                yield (row.user, row.client_id), read(row)

    return values


def _per_listener(read: Callable[[Gate], float | None]) -> Callable[[Scrape], Iterator[tuple[Labels, float]]]:
    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        for name, gate in scrape.listeners.items():
            value = read(gate)
            if value is not None:
                yield (name,), value

    return values


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


def _of_topics(read: Callable[[TopicsReport], float]) -> Callable[[Scrape], Iterator[tuple[Labels, float]]]:
    """A value where topics have quotas."""

    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        if scrape.topics is not None:
            yield (), read(scrape.topics)

    return values


def _per_topic(read: Callable[[TopicRow], float | None]) -> Callable[[Scrape], Iterator[tuple[Labels, float]]]:
    """A value for each topic that is shown and has one."""

    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        for row in scrape.topics.rows if scrape.topics is not None else ():
            value = read(row)
            if value is not None:
                yield (row.topic,), value

    return values


def _refused_topics(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    for row in scrape.topics.rows if scrape.topics is not None else ():
        for reason, size in sorted(row.refused_bytes.items()):
            yield (row.topic, reason), size


def _of_volumes(read: Callable[[VolumesReport], float]) -> Callable[[Scrape], Iterator[tuple[Labels, float]]]:
    """A value of the volume usage quota; absent where it is not configured."""

    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        if scrape.volumes is not None:
            yield (), read(scrape.volumes)

    return values


def _per_volume(read: Callable[[VolumeRow], float]) -> Callable[[Scrape], Iterator[tuple[Labels, float]]]:
    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        if scrape.volumes is not None:
            for row in scrape.volumes.verdict.rows[:_MAX_VOLUMES]:
                yield (str(row.broker), row.volume.name), read(row)

    return values


def _volume_connections(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    if scrape.volumes is not None:
        yield ("reader",), scrape.volumes.reader_connected
        if scrape.volumes.publishes:
            yield ("publisher",), scrape.volumes.publisher_connected


def _volume_state(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    if scrape.volumes is not None:
        for state in VolumeState:
            yield (state.value,), state is scrape.volumes.verdict.state


def _volume_requests(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    if scrape.volumes is not None:
        yield ("delayed",), scrape.volumes.throttled_total
        yield ("refused",), scrape.volumes.refused_total
        yield ("put_off",), scrape.volumes.put_off_total


def _skipped_messages(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    if scrape.volumes is not None:
        for reason, count in sorted(scrape.volumes.skipped.items()):
            yield (reason,), count


def _of_quota_log(read: Callable[[QuotaLogReport], float]) -> Callable[[Scrape], Iterator[tuple[Labels, float]]]:
    """The sample of something that there is only where quotas of the API are in a topic."""

    def samples(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        if scrape.quota_log is not None:
            yield (), read(scrape.quota_log)

    return samples


def _skipped_quotas(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    if scrape.quota_log is not None:
        for reason, count in sorted(scrape.quota_log.skipped.items()):
            yield (reason,), count


def _of_sharing(read: Callable[[SharingReport], float]) -> Callable[[Scrape], Iterator[tuple[Labels, float]]]:
    """A value where quotas are shared."""

    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        if scrape.sharing is not None:
            yield (), read(scrape.sharing)

    return values


def _skipped_uses(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    if scrape.sharing is not None:
        for reason, count in sorted(scrape.sharing.skipped.items()):
            yield (reason,), count


def _throttle_times(scrape: Scrape) -> Iterator[tuple[Labels, Histogram]]:
    for total in [*scrape.totals, *([] if scrape.volumes is None else [scrape.volumes.totals])]:
        yield (total.kind,), Histogram(THROTTLE_BOUNDS, total.buckets, total.seconds)


def _latencies(scrape: Scrape) -> Iterator[tuple[Labels, Histogram]]:
    counters = scrape.counters
    bounds = tuple(2**slot / 2**20 for slot in _LATENCY_SLOTS)
    for key, slots in enumerate(counters.latency):
        if any(slots):
            edges = [0, *(slot + 1 for slot in _LATENCY_SLOTS), len(slots)]
            counts = tuple(sum(slots[low:high]) for low, high in pairwise(edges))
            yield (api_name(key),), Histogram(bounds, counts, counters.latency_seconds[key])


_BUCKET: Labels = ("kind", "user", "client_id", "ip")
"""`ip` is there for addresses alone: a sample of a client's bucket has the other three, as if there were no addresses."""
_VOLUME: Labels = ("broker", "volume")

METRICS: tuple[Value | Distribution, ...] = (
    Value("counter", "weir_quota_bytes_total", "Bytes charged to a bucket of a byte quota.", _BUCKET,
          _per_bucket(lambda row: row.amount_total, unit="bytes")),
    Value("gauge", "weir_quota_usage", "What a bucket uses now, in units per second.", _BUCKET,
          _per_bucket(lambda row: row.rate)),
    Value("gauge", "weir_quota_limit", "What a bucket may use, in units per second; absent where it is unlimited.", _BUCKET,
          _per_bucket(lambda row: row.limit), merge="max"),
    Value("gauge", "weir_quota_used_ratio", "Fraction of the quota used (KIP-13), 1.0 at the quota.", _BUCKET,
          _per_bucket(lambda row: None if row.limit is None else row.used_ratio)),
    Value("gauge", "weir_quota_tokens", "Tokens left in a bucket, below 0 while it is throttled.", _BUCKET,
          _per_bucket(lambda row: row.tokens), merge="min"),
    Value("counter", "weir_throttled_requests_total", "Requests answered with a throttle time of Weir's own.", _BUCKET,
          _per_bucket(lambda row: row.throttled_total)),
    Value("counter", "weir_throttle_seconds_total", "Sum of these throttle times in seconds.", _BUCKET,
          _per_bucket(lambda row: row.throttle_seconds_total)),
    Distribution("weir_throttle_time_seconds", "Throttle times in seconds.", ("kind",), _throttle_times),
    Value("counter", "weir_early_requests_total", "Requests that came before the client's throttle time was over.",
          ("user", "client_id"), _early(lambda row: row.early_total)),
    Value("counter", "weir_early_request_seconds_total", "By how much they came before it was over, at least.",
          ("user", "client_id"), _early(lambda row: row.early_seconds_total)),
    Value("gauge", "weir_small_quotas", "Entities whose quota is so small that a full request mutes for longer than the usual"
          " session timeout.", ("kind",), _reasons(lambda scrape: scrape.small_quotas), merge="max"),
    Value("counter", "weir_quota_overflowed_total", "Times a client had to share a bucket because there are too many.", (),
          _one(lambda scrape: scrape.overflowed)),
    Value("gauge", "weir_quota_enforced", "1 where quotas are enforced, 0 where they are only measured.", (),
          _one(lambda scrape: scrape.effective.config.quotas.enforce), merge="min"),
    Value("gauge", "weir_muted_connections", "Client connections that are not read from now, because of a quota.", (),
          _one(lambda scrape: scrape.counters.muted)),
    Value("gauge", "weir_connections", "Client connections open now.", (), _one(lambda scrape: scrape.counters.connections)),
    Value("gauge", "weir_listener_connections", "Client connections open now, TLS handshakes included.", ("listener",),
          _per_listener(lambda gate: gate.connections)),
    Value("gauge", "weir_listener_max_connections", "How many may be open at a time; absent where there is no maximum.",
          ("listener",), _per_listener(lambda gate: gate.limits.max_connections)),
    Value("counter", "weir_accept_throttle_seconds_total", "Time for which new connections were left waiting by a"
          " connection_creation_rate of the listener or of the whole gateway.", ("listener",),
          _per_listener(lambda gate: gate.throttle_seconds_total)),
    Value("gauge", "weir_held_connections", "Connections turned away by an address's rate that are closed in a moment.", (),
          _one(lambda scrape: scrape.held)),
    Value("counter", "weir_connections_accepted_total", "Client connections accepted.", (),
          _one(lambda scrape: scrape.counters.connections_total)),
    Value("counter", "weir_connections_rejected_total", "Client connections refused or closed by a limit.", ("reason",),
          _reasons(lambda scrape: scrape.rejected)),
    Value("counter", "weir_protocol_errors_total", "Client connections closed for what they sent.", ("reason",),
          _reasons(lambda scrape: scrape.protocol_errors)),
    Value("gauge", "weir_tls_handshakes", "TLS handshakes with clients that are under way now.", (),
          _one(lambda scrape: scrape.counters.handshakes)),
    Value("counter", "weir_tls_handshake_failures_total", "TLS handshakes with clients that failed.", ("reason",),
          _reasons(lambda scrape: scrape.handshake_failures)),
    Value("counter", "weir_tls_reloads_total", "Changed certificate files, by what came of them.", ("result",),
          _reasons(lambda scrape: scrape.certificate_reloads), merge="max"),
    Value("counter", "weir_authentications_total", "SASL authentications that a broker accepted.", ("mechanism",),
          _reasons(lambda scrape: scrape.authentications)),
    Value("counter", "weir_authentication_failures_total", "SASL authentications that failed.", ("reason",),
          _reasons(lambda scrape: scrape.authentication_failures)),
    Value("counter", "weir_requests_total", "Requests by API.", ("api",), _requests),
    Distribution("weir_request_seconds", "Time from a request sent upstream to its response.", ("api",), _latencies),
    Value("counter", "weir_topic_bytes_total", "Bytes of record batches that brokers appended to a topic.", ("topic",),
          _per_topic(lambda row: row.appended_bytes)),
    Value("counter", "weir_topic_throttled_bytes_total", "Bytes rejected because their topic was over its share.", ("topic",),
          _per_topic(lambda row: row.throttled_bytes)),
    Value("counter", "weir_topic_throttled_requests_total", "Requests with bytes of it that were rejected so.", ("topic",),
          _per_topic(lambda row: row.throttled_total)),
    Value("counter", "weir_topic_refused_bytes_total", "Bytes that brokers did not append, by the broker's error.",
          ("topic", "reason"), _refused_topics),
    Value("gauge", "weir_topic_rate", "What is appended to a topic, in bytes per second, as its quota sees it.", ("topic",),
          _per_topic(lambda row: row.rate)),
    Value("gauge", "weir_topic_threshold", "A topic's threshold, explicit or its part of the rest, in bytes per second.",
          ("topic",), _per_topic(lambda row: row.threshold), merge="max"),
    Value("gauge", "weir_topic_rejected", "1 where what comes for a topic now is rejected.", ("topic",),
          _per_topic(lambda row: row.rejected), merge="max"),
    Value("gauge", "weir_topics_rate", "What is appended to all topics, in bytes per second.", (),
          _of_topics(lambda topics: topics.total.rate)),
    Value("gauge", "weir_topics_threshold", "The threshold of all topics together, in bytes per second.", (),
          _of_topics(lambda topics: topics.total.threshold), merge="max"),
    Value("gauge", "weir_topics_default_threshold", "The part of a topic without a threshold of its own.", (),
          _of_topics(lambda topics: topics.total.default_threshold), merge="max"),
    Value("gauge", "weir_topics_over", "1 while all topics together are over their threshold.", (),
          _of_topics(lambda topics: topics.total.over), merge="max"),
    Value("gauge", "weir_volume_state", "1 for the state that the cluster's volumes ask for, 0 for the others.", ("state",),
          _volume_state, merge="max"),
    Value("gauge", "weir_volume_factor", "Share of the producers' rate that the volumes let through: 1 open, 0 paused.", (),
          _of_volumes(lambda volumes: volumes.verdict.factor), merge="min"),
    Value("gauge", "weir_volume_delay_seconds", "What each Produce request waits for the volumes' sake.", (),
          _of_volumes(lambda volumes: volumes.delay_seconds), merge="max"),
    Value("gauge", "weir_volume_data_missing", "1 while producers are paused because some broker's usage is not known.", (),
          _of_volumes(lambda volumes: volumes.verdict.for_lack_of_data), merge="max"),
    Value("gauge", "weir_volume_unknown_brokers", "Active brokers whose usage is missing or stale.", (),
          _of_volumes(lambda volumes: len(volumes.verdict.unknown)), merge="max"),
    Value("gauge", "weir_volume_capacity_bytes", "Capacity of a volume.", _VOLUME,
          _per_volume(lambda row: row.volume.capacity), merge="max"),
    Value("gauge", "weir_volume_consumed_bytes", "Bytes in use of a volume.", _VOLUME,
          _per_volume(lambda row: row.volume.consumed), merge="max"),
    Value("gauge", "weir_volume_soft_limit_bytes", "Bytes in use at which producers begin to be delayed.", _VOLUME,
          _per_volume(lambda row: row.soft.reached_at(row.volume.capacity)), merge="max"),
    Value("gauge", "weir_volume_hard_limit_bytes", "Bytes in use at which producers are paused.", _VOLUME,
          _per_volume(lambda row: row.hard.reached_at(row.volume.capacity)), merge="max"),
    Value("gauge", "weir_volume_connected", "1 while the usage topic can be read (reader) and written (publisher).", ("role",),
          _volume_connections, merge="min"),
    Value("counter", "weir_volume_published_total", "Usage messages published.", (),
          _of_volumes(lambda volumes: volumes.published_total)),
    Value("counter", "weir_volume_publication_errors_total", "Attempts to publish usage that failed.", (),
          _of_volumes(lambda volumes: volumes.publication_errors_total)),
    Value("counter", "weir_volume_source_errors_total", "Brokers that did not tell their usage when they were asked.", (),
          _of_volumes(lambda volumes: volumes.source_errors_total)),
    Value("counter", "weir_volume_messages_total", "Records read from the usage topic.", (),
          _of_volumes(lambda volumes: volumes.messages_total)),
    Value("counter", "weir_volume_messages_skipped_total", "Usage messages that could not be used.", ("reason",),
          _skipped_messages),
    Value("counter", "weir_volume_produce_requests_total", "Produce requests held for the volumes' sake, by what came of it.",
          ("result",), _volume_requests),
    Value("gauge", "weir_sharing_members", "Gateways that share their quotas, this one included, as far as it has heard.", (),
          _of_sharing(lambda sharing: sharing.members), merge="min"),
    Value("gauge", "weir_sharing_reachable", "1 while this gateway hears what is published to the usage topic.", (),
          _of_sharing(lambda sharing: sharing.reachable), merge="min"),
    Value("gauge", "weir_sharing_entities", "Entities, here and at other gateways, whose use is remembered.", (),
          _of_sharing(lambda sharing: sharing.entities), merge="max"),
    Value("counter", "weir_sharing_messages_total", "Records read from the usage topic, this gateway's own included.", (),
          _of_sharing(lambda sharing: sharing.messages_total)),
    Value("counter", "weir_sharing_published_total", "Messages published to the usage topic.", (),
          _of_sharing(lambda sharing: sharing.published_total)),
    Value("counter", "weir_sharing_publication_errors_total", "Attempts to publish a message that failed.", (),
          _of_sharing(lambda sharing: sharing.publication_errors_total)),
    Value("counter", "weir_sharing_left_out_total", "Entities that a message had no room for; a later one tells their use.", (),
          _of_sharing(lambda sharing: sharing.left_out_total)),
    Value("counter", "weir_sharing_messages_skipped_total", "Messages, or entities in them, that could not be used.",
          ("reason",), _skipped_uses),
    Value("gauge", "weir_api_quota_topic_connected", "1 while the topic of quotas that are set through the API can be read.",
          (), _of_quota_log(lambda log: log.connected), merge="min"),
    Value("gauge", "weir_api_quota_topic_entities", "Entities that have quotas from that topic, or from the copy of it.", (),
          _of_quota_log(lambda log: log.entities), merge="max"),
    Value("counter", "weir_api_quota_topic_records_total", "Records read from that topic.", (),
          _of_quota_log(lambda log: log.records_total)),
    Value("counter", "weir_api_quota_topic_publication_errors_total", "Attempts to write to that topic that failed.", (),
          _of_quota_log(lambda log: log.publication_errors_total)),
    Value("counter", "weir_api_quota_topic_skipped_total", "Records of that topic that could not be used.", ("reason",),
          _skipped_quotas),
    Value("counter", "weir_config_reloads_total", "Changed config files, by what came of them.", ("result",),
          _reasons(lambda scrape: scrape.reloads), merge="max"),
    Value("counter", "weir_usage_saves_total", "Attempts to save recent usage for the next start, by what came of them.",
          ("result",), _reasons(lambda scrape: scrape.usage_saves)),
    Value("counter", "weir_ledger_dropped_total", "Events that the ledger has lost: its queue or the disk was full.", (),
          _one(lambda scrape: scrape.counters.ledger_dropped)),
    Value("gauge", "weir_config_last_reload_successful", "1 unless the config file that was looked at last was refused.", (),
          _one(lambda scrape: scrape.effective.last is None or scrape.effective.last.success), merge="min"),
    Value("gauge", "weir_config_last_reload_success_timestamp_seconds", "When a config file was last accepted.", (),
          _one(lambda scrape: scrape.effective.last_success_at), merge="min"),
    Value("gauge", "weir_config_version", "Version of the config in effect, from 1.", (),
          _one(lambda scrape: scrape.effective.version), merge="max"),
    Value("gauge", "weir_ready", "1 while clients may be sent here, as /readyz says.", (),
          _one(lambda scrape: scrape.ready), merge="max"),
    Value("gauge", "weir_build_info", "1, labelled with the version.", ("version",),
          lambda _: [((weir_version(),), 1)], merge="max"),
)  # fmt: skip
"""Every metric. Labels are bounded: buckets by the engine, the rest by the program itself."""


def exposition(scrape: Scrape, accept: str) -> tuple[bytes, str]:
    """A page of metrics in the format that the `Accept` header asks for, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(scrape)
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
