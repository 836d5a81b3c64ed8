"""Saves of recent use, and their failures."""

from gateway.admin.metrics.row import Row, Value, reasons

METRICS: tuple[Row, ...] = (
    Value("counter", "weir_usage_saves_total", "Attempts to save recent use for the next start, by result.", ("result",),
          reasons(lambda scrape: scrape.counters.usage_saves, "success", "failure")),
)  # fmt: skip
