"""The metrics of the topic that keeps the quotas of the API."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.admin.metrics.row import Row, Value, one_of, reasons_of
from gateway.cluster.log_status import LogStatus


@dataclass(frozen=True, slots=True)
class QuotaTopicReport:
    """`entities` have quotas from the topic or from its copy. `skipped` counts records by reason."""

    log: LogStatus
    entities: int
    skipped: Mapping[str, int]


_quota_topic = one_of(QuotaTopicReport)

METRICS: tuple[Row, ...] = (
    Value("gauge", "weir_api_quota_topic_connected", "1 while Weir can read sharing.quotas_topic, which keeps the quotas of"
          " the API.", (), _quota_topic(lambda topic: topic.log.reader.connected), merge="min"),
    Value("gauge", "weir_api_quota_topic_entities", "Entities with quotas from sharing.quotas_topic or from its copy.", (),
          _quota_topic(lambda topic: topic.entities), merge="max"),
    Value("counter", "weir_api_quota_topic_records_total", "Records read from sharing.quotas_topic.", (),
          _quota_topic(lambda topic: topic.log.records_total)),
    Value("counter", "weir_api_quota_topic_publication_errors_total", "Failed attempts to write to sharing.quotas_topic.", (),
          _quota_topic(lambda topic: topic.log.publication_errors_total)),
    Value("counter", "weir_api_quota_topic_skipped_total", "Unusable records of sharing.quotas_topic.", ("reason",),
          reasons_of(QuotaTopicReport, lambda topic: topic.skipped)),
)  # fmt: skip
