"""The delay of all producers, beyond their own quotas, because a volume of the cluster is filling up."""

from gateway.quotas.policy import KindTotals


class ProduceGate:
    """Open while `delay` is 0.0, which costs nothing. A caller that opens or closes it has the engine recall its buckets.

    A Produce request mutes its client for `delay` seconds. While `paused` is set, no Produce request goes to a broker.
    Two kinds of requests always pass: to a topic of Weir's own alone, and of clients that are exempt from volume quotas.
    """

    __slots__ = (
        "delay",
        "paused",
        "put_off_total",
        "refused_total",
        "throttled_total",
        "totals",
    )

    def __init__(self) -> None:
        self.delay = 0.0
        self.paused = False
        self.throttled_total = 0  # requests that went to their broker and were delayed
        self.refused_total = 0  # requests that were answered with an error
        self.put_off_total = 0  # deferrals of requests without an answer (acks=0)
        self.totals = KindTotals()

    @property
    def closed(self) -> bool:
        return self.delay > 0.0

    def delayed(self) -> float:
        """Count a request that goes to its broker, and return the seconds for which its client is muted."""
        self.throttled_total += 1
        self.totals.note(self.delay)
        return self.delay

    def defer(self) -> float:
        """Count that a request is deferred, and return the seconds after which to look again."""
        self.put_off_total += 1
        return self.delay

    def refused(self) -> float:
        """Count a request that is refused, and return the seconds for which its client is muted."""
        self.refused_total += 1
        self.totals.note(self.delay)
        return self.delay
