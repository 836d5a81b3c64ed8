"""The metrics of the topic that keeps the quotas of the API."""

from gateway.admin.metrics.row import Row, Value, one_of, reasons_of
from gateway.features.quota_api.records import QuotaLogReport

_quota_log = one_of(QuotaLogReport)

METRICS: tuple[Row, ...] = (
    Value("gauge", "weir_api_quota_topic_connected", "1 while Weir can read the topic that keeps the quotas of the API.",
          (), _quota_log(lambda log: log.connected), merge="min"),
    Value("gauge", "weir_api_quota_topic_entities", "Entities with quotas from that topic or from its copy.", (),
          _quota_log(lambda log: log.entities), merge="max"),
    Value("counter", "weir_api_quota_topic_records_total", "Records read from that topic.", (),
          _quota_log(lambda log: log.records_total)),
    Value("counter", "weir_api_quota_topic_publication_errors_total", "Failed attempts to write to that topic.", (),
          _quota_log(lambda log: log.publication_errors_total)),
    Value("counter", "weir_api_quota_topic_skipped_total", "Records of that topic that Weir skipped as unusable.", ("reason",),
          reasons_of(QuotaLogReport, lambda log: log.skipped)),
)  # fmt: skip
