"""What the engine shows of itself to metrics, tables and the admin API."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One bucket: an entity's use of one quota kind. Rates are in the kind's unit (bytes) per second, times in seconds.

    `user`, `client_id` and `ip` are the bucket's tags (Kafka's): "" where the level does not name one. `level` is the
    configured entity that gave the limit, such as `user=alice, client-id=<default>`, and `source` who configured it, `file` or
    `api`; both are "" where there is none. `limit` None is unlimited.
    `used_ratio` is KIP-13's fraction of quota used, by all gateways that share the quota: throttling begins at 1.0. `rate` is
    this gateway's own. `tokens` is None under `algorithm: window`.
    `early_total` counts requests that came before their client's throttle time was over, the two others by how much at least.
    `throttle_left` is how long a request that arrives now would be held.
    """

    kind: str
    user: str
    client_id: str
    ip: str
    level: str
    source: str
    limit: float | None
    rate: float
    used_ratio: float
    tokens: float | None
    amount_total: int
    throttled_total: int
    throttle_seconds_total: float
    early_total: int
    early_seconds_total: float
    early_seconds_max: float
    throttle_left: float
    connections: int


@dataclass(frozen=True, slots=True)
class ThrottleTotals:
    """All throttle decisions of one kind as a histogram: `buckets[i]` counts times up to `BOUNDS[i]` seconds (not cumulative).

    The last slot of `buckets`, one more than there are bounds, counts what was longer. `seconds` is their sum.
    """

    kind: str
    buckets: tuple[int, ...]
    seconds: float


THROTTLE_BOUNDS: tuple[float, ...] = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0)
