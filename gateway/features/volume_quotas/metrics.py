"""Metrics of the cluster's volumes, and of the Produce requests that the volume quota delays, refuses or defers."""

from collections.abc import Callable, Iterator

from gateway.admin.metrics.row import Labels, Read, Row, Value, deprecated, one_of, reasons_of
from gateway.admin.metrics.scrape import Scrape
from gateway.features.volume_quotas.report import PublisherReport, VolumesReport
from gateway.features.volume_quotas.rules import VolumeRow, VolumeState

_MAX_ROWS = 1_000
"""The maximum number of volumes, or of brokers, that a metric shows."""

_VOLUME: Labels = ("broker", "volume")

_reported = one_of(VolumesReport)
_published = one_of(PublisherReport)


def _per_volume(read: Callable[[VolumeRow], float]) -> Read:
    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        if (volumes := scrape.report(VolumesReport)) is not None:
            for row in volumes.verdict.rows[:_MAX_ROWS]:
                yield (str(row.broker), row.volume.name), read(row)

    return values


def _volume_connections(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    if (publisher := scrape.report(PublisherReport)) is not None:
        if isinstance(publisher, VolumesReport):
            yield ("reader",), publisher.log.reader.connected
        if not isinstance(publisher, VolumesReport) or publisher.publishes:
            yield ("publisher",), publisher.log.publisher.connected


def _volume_state(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    if (volumes := scrape.report(VolumesReport)) is not None:
        for state in VolumeState:
            yield (state.value,), state is volumes.verdict.state


def _volume_requests(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    if (volumes := scrape.report(VolumesReport)) is not None:
        yield ("delayed",), volumes.gate.throttled_total
        yield ("refused",), volumes.gate.refused_total
        yield ("put_off",), volumes.gate.deferred_total


def _usage_ages(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    if (volumes := scrape.report(VolumesReport)) is not None:
        for broker, age in list(volumes.ages.items())[:_MAX_ROWS]:
            yield (str(broker),), age


def _freshness(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    if (volumes := scrape.report(VolumesReport)) is not None:
        yield (volumes.config.when_unknown,), volumes.config.freshness_seconds


def _publication_age(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    publisher = scrape.report(PublisherReport)
    if publisher is not None and publisher.age is not None:
        yield (), publisher.age


PUBLISHER_METRICS: tuple[Row, ...] = (
    Value("gauge", "weir_volume_connected", "1 while the usage topic of volumes can be read (reader) and written (publisher).",
          ("role",), _volume_connections, merge="min"),
    Value("counter", "weir_volume_published_total", "Usage messages of volumes published.", (),
          _published(lambda publisher: publisher.log.published_total)),
    Value("gauge", "weir_volume_publication_age_seconds", "Time since this process last published usage.", (),
          _publication_age, merge="max"),
    Value("counter", "weir_volume_publication_errors_total", "Failed attempts to publish the usage of volumes.", (),
          _published(lambda publisher: publisher.log.publication_errors_total)),
    Value("counter", "weir_volume_source_errors_total", "Failed requests to brokers for their usage.", (),
          _published(lambda publisher: publisher.source_errors_total)),
)  # fmt: skip
"""The metrics of gateways and agents."""

_OPEN_RATIO = Value(
    "gauge",
    "weir_volume_open_ratio",
    "Share of the producers' rate that the volumes let through: 1 open, 0 paused.",
    (),
    _reported(lambda volumes: volumes.verdict.factor),
    merge="min",
)

METRICS: tuple[Row, ...] = (
    Value("gauge", "weir_volume_state", "1 for the state of the cluster's volumes, 0 for the other states.", ("state",),
          _volume_state, merge="max"),
    Value("gauge", "weir_volume_enforced", "1 if the volume quota slows and pauses producers, 0 if it is only measured.", (),
          _reported(lambda volumes: volumes.config.enforce), merge="min"),
    _OPEN_RATIO,
    deprecated("weir_volume_factor", _OPEN_RATIO),
    Value("gauge", "weir_volume_delay_seconds", "Delay of each Produce request by the volume quota.", (),
          _reported(lambda volumes: volumes.gate.delay), merge="max"),
    Value("gauge", "weir_volume_data_missing", "1 while the state is PAUSE because some broker's usage is not known.", (),
          _reported(lambda volumes: volumes.verdict.for_lack_of_data), merge="max"),
    Value("gauge", "weir_volume_unknown_brokers", "Active brokers whose usage is missing or stale.", (),
          _reported(lambda volumes: len(volumes.verdict.unknown)), merge="max"),
    Value("gauge", "weir_volume_usage_age_seconds", "Time since the usage of an active broker was captured.", ("broker",),
          _usage_ages, merge="max"),
    Value("gauge", "weir_volume_freshness_seconds", "Age at which usage counts as unknown, by the state that then applies.",
          ("when_unknown",), _freshness, merge="max"),
    Value("gauge", "weir_volume_capacity_bytes", "Capacity of a volume.", _VOLUME, _per_volume(lambda row: row.volume.capacity),
          merge="max"),
    Value("gauge", "weir_volume_consumed_bytes", "Bytes in use of a volume.", _VOLUME,
          _per_volume(lambda row: row.volume.consumed), merge="max"),
    Value("gauge", "weir_volume_soft_limit_bytes", "Bytes in use at which producers begin to be delayed.", _VOLUME,
          _per_volume(lambda row: row.soft.reached_at(row.volume.capacity)), merge="max"),
    Value("gauge", "weir_volume_hard_limit_bytes", "Bytes in use at which producers are paused.", _VOLUME,
          _per_volume(lambda row: row.hard.reached_at(row.volume.capacity)), merge="max"),
    *PUBLISHER_METRICS,
    Value("counter", "weir_volume_messages_total", "Records read from the usage topic of volumes.", (),
          _reported(lambda volumes: volumes.log.records_total)),
    Value("counter", "weir_volume_messages_skipped_total", "Unusable messages of the usage topic of volumes.", ("reason",),
          reasons_of(VolumesReport, lambda volumes: volumes.skipped)),
    Value("counter", "weir_volume_produce_requests_total", "Produce requests delayed, refused or deferred (put_off) by the"
          " volume quota.", ("result",), _volume_requests),
)  # fmt: skip
