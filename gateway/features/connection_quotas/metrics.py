"""Connections that are refused, held or left waiting, and the limits of listeners."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gateway.admin.metrics.row import Labels, Read, Row, Value, one_of, reasons
from gateway.admin.metrics.scrape import Scrape
from gateway.features.connection_quotas.rules import Gate


@dataclass(frozen=True, slots=True)
class ConnectionsReport:
    """`held` sockets of refused clients wait to be closed. The gates of `listeners` go on counting."""

    listeners: Mapping[str, Gate]
    held: int


def _per_listener(read: Callable[[Gate], float | None]) -> Read:
    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        report = scrape.report(ConnectionsReport)
        for name, gate in ({} if report is None else report.listeners).items():
            value = read(gate)
            if value is not None:
                yield (name,), value

    return values


METRICS: tuple[Row, ...] = (
    Value("gauge", "weir_listener_connections", "Client connections open now, TLS handshakes included.", ("listener",),
          _per_listener(lambda gate: gate.connections)),
    Value("gauge", "weir_listener_max_connections", "How many may be open at a time; absent where there is no maximum.",
          ("listener",), _per_listener(lambda gate: gate.limits.max_connections)),
    Value("counter", "weir_accept_throttle_seconds_total", "Time for which new connections were left waiting by a"
          " connection_creation_rate of the listener or of the whole gateway.", ("listener",),
          _per_listener(lambda gate: gate.throttle_seconds_total)),
    Value("gauge", "weir_held_connections", "Connections refused by an address's rate that are closed in a moment.", (),
          one_of(ConnectionsReport)(lambda report: report.held)),
    Value("counter", "weir_connections_rejected_total", "Client connections refused or closed by a limit.", ("reason",),
          reasons(lambda scrape: scrape.rejected)),
)  # fmt: skip
