"""The gateway itself: its config, its files, whether it is ready."""

from gateway.admin.metrics.row import Row, Value, one, one_of, reasons
from gateway.version import weir_version

METRICS: tuple[Row, ...] = (
    Value("counter", "weir_config_reloads_total", "Changed config files, by what came of them.", ("result",),
          reasons(lambda scrape: scrape.reloads), merge="max"),
    Value("counter", "weir_usage_saves_total", "Attempts to save recent usage for the next start, by what came of them.",
          ("result",), reasons(lambda scrape: scrape.usage_saves)),
    Value("counter", "weir_task_restarts_total", "Background tasks that failed and were started again.", ("task",),
          reasons(lambda scrape: scrape.task_restarts)),
    Value("counter", "weir_ledger_dropped_total", "Events that the ledger has lost: its queue or the disk was full.", (),
          one(lambda scrape: scrape.counters.ledger_dropped)),
    Value("counter", "weir_ledger_topic_dropped_total", "Lines of the ledger that only `ledger.topic` lacks: its brokers were"
          " too slow, or away for too long.", (), one(lambda scrape: scrape.counters.ledger_topic_dropped)),
    Value("gauge", "weir_ledger_topic_connected", "1 unless the last attempt to write to the ledger's topic failed.", (),
          one_of(lambda scrape: scrape.ledger_topic_connected)(float), merge="min"),
    Value("gauge", "weir_config_last_reload_successful", "1 unless the config file that was looked at last was refused.", (),
          one(lambda scrape: scrape.effective.last is None or scrape.effective.last.success), merge="min"),
    Value("gauge", "weir_config_last_reload_success_timestamp_seconds", "When a config file was last accepted.", (),
          one(lambda scrape: scrape.effective.last_success_at), merge="min"),
    Value("gauge", "weir_config_version", "Version of the config in effect, from 1.", (),
          one(lambda scrape: scrape.effective.version), merge="max"),
    Value("gauge", "weir_ready", "1 while clients may be sent here, as /readyz says.", (),
          one(lambda scrape: scrape.ready), merge="max"),
    Value("gauge", "weir_build_info", "1, labelled with the version.", ("version",),
          lambda _: [((weir_version(),), 1)], merge="max"),
)  # fmt: skip
