"""What all sessions of a process count, as plain integers; `observe.metrics` reads them when Prometheus scrapes."""

from collections import Counter
from typing import Final

from gateway.events import ConnectionRejected, Event

LATENCY_BUCKETS: Final = 28
"""Histogram slot i counts upstream latencies below 2**i / 2**20 seconds (about 1 us, 2 us, ... 128 s)."""


class Counters:
    """Plain integers, written on the hot path by one thread. It is an `Observer` that counts rejected connections.

    `requests[api_key]` requests seen; `latency[api_key][i]` upstream latencies that fell in slot i (not cumulative) and
    `latency_seconds[api_key]` their sum; `connections` open now; `muted` client connections muted now;
    `rejected[reason]` connections refused or closed by a limit (`max_per_ip`, `broker_unreachable`, `idle`,
    `collected_bytes`, ...);
    `protocol_errors[reason]` connections closed for what they sent; `handshakes` TLS handshakes under way now,
    `handshake_failures[reason]` those that failed; `certificate_reloads[result]` changes of certificate files taken over;
    `authentications[mechanism]` those that a broker accepted, `authentication_failures[reason]` those that it did not;
    `ledger_dropped` events that are in no ledger, `ledger_topic_dropped` those that only `ledger.topic` lacks;
    `usage_saves[result]` attempts to save recent usage; `task_restarts[name]` failures of background tasks.
    """

    def __init__(self, api_keys: int = 128) -> None:
        self.requests: list[int] = [0] * api_keys
        self.latency: list[list[int]] = [[0] * (LATENCY_BUCKETS + 1) for _ in range(api_keys)]
        self.latency_seconds: list[float] = [0.0] * api_keys
        self.connections = 0
        self.connections_total = 0
        self.muted = 0
        self.ledger_dropped = self.ledger_topic_dropped = 0
        self.usage_saves: Counter[str] = Counter()
        self.task_restarts: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.protocol_errors: Counter[str] = Counter()
        self.handshakes = 0
        self.handshake_failures: Counter[str] = Counter()
        self.certificate_reloads: Counter[str] = Counter()
        self.authentications: Counter[str] = Counter()
        self.authentication_failures: Counter[str] = Counter()

    def notify(self, event: Event) -> None:
        if isinstance(event, ConnectionRejected):
            self.rejected[event.reason] += event.count
