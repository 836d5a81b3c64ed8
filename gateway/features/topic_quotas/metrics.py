"""Topics with quotas."""

from collections.abc import Callable, Iterator

from gateway.admin.metrics.row import Labels, Read, Row, Value, one_of
from gateway.admin.metrics.scrape import Scrape
from gateway.features.topic_quotas.rules import TopicRow, TopicsReport

_topics = one_of(TopicsReport)


def _rows(scrape: Scrape) -> list[TopicRow]:
    report = scrape.report(TopicsReport)
    return [] if report is None else report.rows


def _per_topic(read: Callable[[TopicRow], float | None]) -> Read:
    """A value for each topic that is shown and has one."""

    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        for row in _rows(scrape):
            value = read(row)
            if value is not None:
                yield (row.topic,), value

    return values


def _refused_topics(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
    for row in _rows(scrape):
        for reason, size in sorted(row.refused_bytes.items()):
            yield (row.topic, reason), size


METRICS: tuple[Row, ...] = (
    Value("counter", "weir_topic_bytes_total", "Bytes of record batches that brokers appended to a topic.", ("topic",),
          _per_topic(lambda row: row.appended_bytes)),
    Value("counter", "weir_topic_throttled_bytes_total", "Bytes rejected because their topic was over its share; with"
          " `enforce: false` those that would have been.", ("topic",),
          _per_topic(lambda row: row.throttled_bytes)),
    Value("counter", "weir_topic_throttled_requests_total", "Requests with bytes of it that were rejected so.", ("topic",),
          _per_topic(lambda row: row.throttled_total)),
    Value("counter", "weir_topic_refused_bytes_total", "Bytes that brokers did not append, by the broker's error.",
          ("topic", "reason"), _refused_topics),
    Value("gauge", "weir_topic_rate", "Bytes per second that are appended to a topic, through all gateways that share its"
          " quota.", ("topic",), _per_topic(lambda row: row.rate), merge="max"),
    Value("gauge", "weir_topic_threshold", "A topic's threshold, explicit or its part of the rest, in bytes per second.",
          ("topic",), _per_topic(lambda row: row.threshold), merge="max"),
    Value("gauge", "weir_topic_rejected", "1 where what comes for a topic now is rejected.", ("topic",),
          _per_topic(lambda row: row.rejected), merge="max"),
    Value("gauge", "weir_topics_rate", "Bytes per second that are appended to all topics, through all gateways that share"
          " their quotas.", (), _topics(lambda topics: topics.total.rate), merge="max"),
    Value("gauge", "weir_topics_threshold", "The threshold of all topics together, in bytes per second.", (),
          _topics(lambda topics: topics.total.threshold), merge="max"),
    Value("gauge", "weir_topics_default_threshold", "The part of a topic without a threshold of its own.", (),
          _topics(lambda topics: topics.total.default_threshold), merge="max"),
    Value("gauge", "weir_topics_over", "1 while all topics together are over their threshold.", (),
          _topics(lambda topics: topics.total.over), merge="max"),
)  # fmt: skip
