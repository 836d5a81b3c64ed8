"""The counters of all sessions of a process; `gateway.admin.metrics` reads them when Prometheus scrapes."""

from collections import Counter
from typing import Final

from gateway.events import ConnectionRejected, Event

LATENCY_SLOTS: Final = 28
"""Histogram slot i counts upstream latencies below 2**i / 2**20 seconds (about 1 us, 2 us, ... 128 s)."""

_API_KEYS: Final = 128


class Counters:
    """Plain integers, written on the hot path by one thread. It is an `Observer` that counts rejected connections.

    `latency[api_key][i]` counts upstream latencies in slot i (not cumulative), and `latency_seconds[api_key]` is their sum.
    `wait_moves[api_key][i]`, added to it, gives the latencies that clients see: a request that waited in Weir leaves its slot
    for a later slot. `wait_seconds[api_key]` is the sum of the waits.
    `member_mutes` counts mutes that were kept short for a member of a consumer group, or for the locks of a share consumer.
    `connections_reused` counts connections to brokers that a client got from one that had gone.
    `connections` and `muted` are of this moment. `rejected[reason]` counts connections that a limit refused or closed.
    `protocol_errors[reason]` counts connections that are closed for their peer's bytes. `handshakes` are TLS handshakes of this
    moment, `handshake_failures[reason]` those that failed. `certificate_reloads[result]` counts attempts to load changed files.
    `certificate_expiries[key]` has wall clock seconds at which the first certificate of a config key's file expires.
    `proxy_headers[kind]` counts connections of listeners that read PROXY headers: v1, v2, local (a balancer's own), none.
    `authentications[mechanism]` counts those that a broker accepted, `authentication_failures[reason]` the others.
    `ledger_dropped` counts events that are in no ledger, `ledger_topic_dropped` those that only `ledger.topic` lacks.
    `brokers_without_port[listener]` are live brokers that clients can't reach at this moment.
    `usage_saves[result]` counts attempts to save recent use, `task_restarts[name]` failures of background tasks.
    """

    def __init__(self) -> None:
        self.requests: list[int] = [0] * _API_KEYS
        self.latency: list[list[int]] = [[0] * (LATENCY_SLOTS + 1) for _ in range(_API_KEYS)]
        self.latency_seconds: list[float] = [0.0] * _API_KEYS
        self.wait_moves: list[list[int]] = [[0] * (LATENCY_SLOTS + 1) for _ in range(_API_KEYS)]
        self.wait_seconds: list[float] = [0.0] * _API_KEYS
        self.connections = 0
        self.connections_total = 0
        self.connections_reused = 0
        self.muted = 0
        self.member_mutes = 0
        self.ledger_dropped = self.ledger_topic_dropped = 0
        self.brokers_without_port: Counter[str] = Counter()
        self.usage_saves: Counter[str] = Counter()
        self.task_restarts: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.protocol_errors: Counter[str] = Counter()
        self.handshakes = 0
        self.handshake_failures: Counter[str] = Counter()
        self.certificate_reloads: Counter[str] = Counter()
        self.certificate_expiries: dict[str, float] = {}
        self.proxy_headers: Counter[str] = Counter()
        self.authentications: Counter[str] = Counter()
        self.authentication_failures: Counter[str] = Counter()

    def notify(self, event: Event) -> None:
        if isinstance(event, ConnectionRejected):
            self.rejected[event.reason] += event.count
