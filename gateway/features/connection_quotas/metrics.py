"""Open, refused, held and waiting connections, and the limits of listeners."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.admin.metrics.row import Labels, Read, Row, Value, one_of, reasons
from gateway.admin.metrics.scrape import Scrape
from gateway.features.connection_quotas.rules import ListenerQuota

WHOLE_GATEWAY: Final = "<gateway>"
"""The label `listener` of the limit on all listeners together."""


@dataclass(frozen=True, slots=True)
class ConnectionsReport:
    """`held` sockets of refused clients wait to be closed. The quotas of `listeners` and of the whole `gateway` go on counting.

    `users` are users with a maximum: the name as metrics show it, the open connections of this gateway, and the maximum.
    """

    listeners: Mapping[str, ListenerQuota]
    gateway: ListenerQuota
    held: int
    users: Sequence[tuple[str, int, int]] = ()


def _per_listener(read: Callable[[ListenerQuota], float | None]) -> Read:
    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        report = scrape.report(ConnectionsReport)
        for name, quota in ({} if report is None else report.listeners).items():
            value = read(quota)
            if value is not None:
                yield (name,), value

    return values


def _per_maximum(read: Callable[[ListenerQuota], float | None]) -> Read:
    """Values of the whole gateway too. Its connections have no sample here: a sum would count each connection twice."""
    of_listeners = _per_listener(read)

    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        yield from of_listeners(scrape)
        report = scrape.report(ConnectionsReport)
        value = None if report is None else read(report.gateway)
        if value is not None:
            yield (WHOLE_GATEWAY,), value

    return values


def _per_user(part: int) -> Read:
    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        report = scrape.report(ConnectionsReport)
        for row in () if report is None else report.users:
            yield (row[0],), float(row[part])

    return values


METRICS: tuple[Row, ...] = (
    Value("gauge", "weir_listener_connections", "Client connections open now, TLS handshakes included.", ("listener",),
          _per_listener(lambda quota: quota.connections)),
    Value("gauge", "weir_listener_max_connections", "Maximum of open connections, over all gateways that share; absent"
          f" without a maximum. `{WHOLE_GATEWAY}` has the maximum of all listeners together.", ("listener",),
          _per_maximum(lambda quota: quota.limits.max_connections), merge="max"),
    Value("gauge", "weir_listener_used_ratio", "Used part of the maximum of open connections, by all gateways that share."
          f" `{WHOLE_GATEWAY}` has the used part of the maximum of all listeners together.", ("listener",),
          _per_maximum(lambda quota: quota.used_ratio), merge="max"),
    Value("counter", "weir_accept_throttle_seconds_total", "Time for which new connections waited because of a"
          " connection_creation_rate of the listener or of the whole gateway.", ("listener",),
          _per_listener(lambda quota: quota.throttle_seconds_total)),
    Value("gauge", "weir_held_connections", "Connections refused by an address's rate that are not closed yet.", (),
          one_of(ConnectionsReport)(lambda report: report.held)),
    Value("gauge", "weir_user_connections", "Open connections of a user with max_connections, the 1000 users with the most.",
          ("user",), _per_user(1)),
    Value("gauge", "weir_user_max_connections", "Maximum of a user's open connections, over all gateways that share.",
          ("user",), _per_user(2), merge="max"),
    Value("counter", "weir_connections_rejected_total", "Client connections refused or closed by a limit, or refused"
          " for their PROXY header.", ("reason",),
          reasons(lambda scrape: scrape.counters.rejected, "broker_unreachable")),
)  # fmt: skip
