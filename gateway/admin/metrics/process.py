"""The gateway itself: its config, its files, whether it is ready."""

from gateway.admin.metrics.row import Row, Value, one, reasons
from gateway.version import weir_version

METRICS: tuple[Row, ...] = (
    Value("counter", "weir_config_reloads_total", "Changed config files, by what came of them.", ("result",),
          reasons(lambda scrape: scrape.reloads), merge="max"),
    Value("counter", "weir_task_restarts_total", "Background tasks that failed and were started again.", ("task",),
          reasons(lambda scrape: scrape.task_restarts)),
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
