"""The metrics of topic quotas."""

from collections.abc import Callable, Iterator

from gateway.admin.metrics.row import Labels, Read, Row, Value, deprecated
from gateway.admin.metrics.scrape import Scrape
from gateway.features.topic_quotas.report import TopicRow, TopicsReport, TopicTotals


def _topics(read: Callable[[TopicTotals], float]) -> Read:
    """The value for the cluster, or for each broker that has quotas of its own."""

    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        report = scrape.report(TopicsReport)
        if report is not None:
            for total in report.brokers or [report.total]:
                yield (total.broker,) if total.broker else (), read(total)

    return values


def _rows(scrape: Scrape) -> list[TopicRow]:
    report = scrape.report(TopicsReport)
    return [] if report is None else report.rows


def _labels(row: TopicRow) -> Labels:
    """Only the topics of single brokers (`quotas.scope: broker`) have the label `broker`."""
    return (row.topic, row.broker) if row.broker else (row.topic,)


def _per_topic(read: Callable[[TopicRow], float | None]) -> Read:
    """The value of each row for which `read` does not return None."""

    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        for row in _rows(scrape):
            value = read(row)
            if value is not None:
                yield _labels(row), value

    return values


def _refused_topics(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    for row in _rows(scrape):
        for reason, size in sorted(row.refused_bytes.items()):
            yield (row.topic, reason, *_labels(row)[1:]), size


_TOPIC: Labels = ("topic", "broker")
_CLUSTER: Labels = ("broker",)
"""Only with `quotas.scope: broker` do samples have the label `broker`."""

_ROWS: tuple[Value, ...] = (
    Value("counter", "weir_topic_bytes_total", "Bytes of record batches that brokers appended to a topic.", _TOPIC,
          _per_topic(lambda row: row.appended_bytes)),
    Value("counter", "weir_topic_throttled_bytes_total", "Bytes rejected because their topic was over its share. With"
          " `enforce: false`: bytes that Weir would have rejected.", _TOPIC, _per_topic(lambda row: row.throttled_bytes)),
    Value("counter", "weir_topic_throttled_requests_total", "Produce requests with bytes that Weir rejected because their"
          " topic was over its share. With `enforce: false`: requests with bytes that Weir would have rejected.", _TOPIC,
          _per_topic(lambda row: row.throttled_total)),
    Value("counter", "weir_topic_refused_bytes_total", "Bytes that brokers did not append, by the broker's error.",
          ("topic", "reason", "broker"), _refused_topics),
    Value("gauge", "weir_topic_usage_bytes_per_second", "Bytes per second that are appended to a topic, through all gateways"
          " that share its quota.", _TOPIC, _per_topic(lambda row: row.rate), merge="max"),
    Value("gauge", "weir_topic_threshold_bytes_per_second", "The threshold of a topic, explicit or default, in bytes per"
          " second.", _TOPIC, _per_topic(lambda row: row.threshold), merge="max"),
    Value("gauge", "weir_topic_rejected", "1 while batches for the topic are rejected. With `enforce: false`: 1 while"
          " batches would be rejected.", _TOPIC,
          _per_topic(lambda row: row.rejected), merge="max"),
    Value("gauge", "weir_topics_usage_bytes_per_second", "Bytes per second that are appended to all topics, through all"
          " gateways that share their quotas.", _CLUSTER, _topics(lambda topics: topics.rate), merge="max"),
    Value("gauge", "weir_topics_threshold_bytes_per_second", "Threshold of all topics together, in bytes per second.", _CLUSTER,
          _topics(lambda topics: topics.threshold), merge="max"),
    Value("gauge", "weir_topics_default_threshold_bytes_per_second", "The threshold of topics without an explicit one, in"
          " bytes per second.", _CLUSTER, _topics(lambda topics: topics.default_threshold), merge="max"),
    Value("gauge", "weir_topics_over", "1 while all topics together are over their threshold.", _CLUSTER,
          _topics(lambda topics: topics.over), merge="max"),
)  # fmt: skip

_OLD_NAMES = {
    "weir_topic_rate": "weir_topic_usage_bytes_per_second",
    "weir_topic_threshold": "weir_topic_threshold_bytes_per_second",
    "weir_topics_rate": "weir_topics_usage_bytes_per_second",
    "weir_topics_threshold": "weir_topics_threshold_bytes_per_second",
    "weir_topics_default_threshold": "weir_topics_default_threshold_bytes_per_second",
}

METRICS: tuple[Row, ...] = (
    *_ROWS,
    *(deprecated(old, row) for old, new in _OLD_NAMES.items() for row in _ROWS if row.name == new),
)
