"""Losses of the ledger, and the connection to its topic."""

from dataclasses import dataclass

from gateway.admin.metrics.row import Row, Value, one, one_of


@dataclass(frozen=True, slots=True)
class LedgerTopicReport:
    """`connected` is False if the last attempt to write to `ledger.topic` failed."""

    connected: bool


METRICS: tuple[Row, ...] = (
    Value("counter", "weir_ledger_dropped_total", "Events that the ledger has lost: its queue or the disk was full.", (),
          one(lambda scrape: scrape.counters.ledger_dropped)),
    Value("counter", "weir_ledger_topic_dropped_total", "Lines that the files have and `ledger.topic` lacks: its brokers were"
          " too slow, away for too long, or refused long lines.", (), one(lambda scrape: scrape.counters.ledger_topic_dropped)),
    Value("gauge", "weir_ledger_topic_connected", "1 unless the last attempt to write to the ledger's topic failed.", (),
          one_of(LedgerTopicReport)(lambda report: report.connected), merge="min"),
)  # fmt: skip
