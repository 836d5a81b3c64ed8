"""What is shared with other gateways: use, and the quotas that are set through the API."""

from gateway.admin.metrics.row import Row, Value, one_of, reasons

_sharing = one_of(lambda scrape: scrape.sharing)
_quota_log = one_of(lambda scrape: scrape.quota_log)

METRICS: tuple[Row, ...] = (
    Value("gauge", "weir_sharing_members", "Gateways that share their quotas, this one included, as far as it has heard.", (),
          _sharing(lambda sharing: sharing.members), merge="min"),
    Value("gauge", "weir_sharing_reachable", "1 while this gateway hears what is published to the usage topic.", (),
          _sharing(lambda sharing: sharing.reachable), merge="min"),
    Value("gauge", "weir_sharing_entities", "Entities, here and at other gateways, whose use is remembered.", (),
          _sharing(lambda sharing: sharing.entities), merge="max"),
    Value("counter", "weir_sharing_messages_total", "Records read from the usage topic, this gateway's own included.", (),
          _sharing(lambda sharing: sharing.messages_total)),
    Value("counter", "weir_sharing_published_total", "Messages published to the usage topic.", (),
          _sharing(lambda sharing: sharing.published_total)),
    Value("counter", "weir_sharing_publication_errors_total", "Attempts to publish a message that failed.", (),
          _sharing(lambda sharing: sharing.publication_errors_total)),
    Value("counter", "weir_sharing_left_out_total", "Entities that a message had no room for; a later one tells their use.", (),
          _sharing(lambda sharing: sharing.left_out_total)),
    Value("counter", "weir_sharing_messages_skipped_total", "Messages, or entities in them, that could not be used.",
          ("reason",), reasons(lambda scrape: {} if scrape.sharing is None else scrape.sharing.skipped)),
    Value("gauge", "weir_api_quota_topic_connected", "1 while the topic of quotas that are set through the API can be read.",
          (), _quota_log(lambda log: log.connected), merge="min"),
    Value("gauge", "weir_api_quota_topic_entities", "Entities that have quotas from that topic, or from the copy of it.", (),
          _quota_log(lambda log: log.entities), merge="max"),
    Value("counter", "weir_api_quota_topic_records_total", "Records read from that topic.", (),
          _quota_log(lambda log: log.records_total)),
    Value("counter", "weir_api_quota_topic_publication_errors_total", "Attempts to write to that topic that failed.", (),
          _quota_log(lambda log: log.publication_errors_total)),
    Value("counter", "weir_api_quota_topic_skipped_total", "Records of that topic that could not be used.", ("reason",),
          reasons(lambda scrape: {} if scrape.quota_log is None else scrape.quota_log.skipped)),
)  # fmt: skip
