"""The state of topic quotas as metrics and the admin API show it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TopicRow:
    """The use of one topic, or of all topics that have no row of their own. Bytes of record batches, through this gateway.

    `rate` is in bytes per second through all gateways that share the threshold. `refused_bytes` are the bytes that the broker
    did not append, by the name of the broker's error. `threshold` is None in the row of the other topics. `broker` is as in
    `UsageRow`.
    """

    topic: str
    threshold: float | None
    explicit: bool
    rate: float
    appended_bytes: int
    throttled_bytes: int
    throttled_total: int
    refused_bytes: Mapping[str, int]
    rejected: bool
    broker: str = ""


@dataclass(frozen=True, slots=True)
class TopicTotals:
    """All topics together, through all gateways. `over`: topics above their own threshold are rejected.

    `broker` is as in `UsageRow`.
    """

    threshold: float
    rate: float
    over: bool
    default_threshold: float
    defaulted: int
    """The number of topics without an explicit threshold."""
    broker: str = ""


@dataclass(frozen=True, slots=True)
class TopicsReport:
    """The state of topic quotas for the admin page and the metrics.

    `brokers` has the totals of each broker if each has quotas of its own. `total` then is that of the broker with most bytes.
    """

    meter: str
    enforced: bool
    total: TopicTotals
    rows: list[TopicRow]
    brokers: list[TopicTotals] = field(default_factory=list)
