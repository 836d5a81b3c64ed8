"""What all producers have to wait beyond their own quotas, because a volume of the cluster is filling up."""

from gateway.quotas.policy import KindTotals


class ProduceGate:
    """Open as long as `delay` is 0.0, which costs nothing; whoever changes that has the engine recall its buckets.

    `delay` (seconds) is the time for which a Produce request mutes its client. While `paused` is set, no Produce request goes
    to a broker. Requests to a topic of Weir's own alone pass in any case, and so do those of clients that are exempt from
    volume quotas.
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
        self.put_off_total = 0  # times that a request without an answer (acks=0) was put off
        self.totals = KindTotals()

    @property
    def closed(self) -> bool:
        """Whether requests have to be looked at."""
        return self.delay > 0.0

    def delayed(self) -> float:
        """Count a request that goes to its broker, and return the seconds for which its client is held."""
        self.throttled_total += 1
        self.totals.note(self.delay)
        return self.delay

    def put_off(self) -> float:
        """Count that a request is not taken yet, and return the seconds after which to look again."""
        self.put_off_total += 1
        return self.delay

    def refused(self) -> float:
        """Count a request that is refused, and return the seconds for which its client is muted."""
        self.refused_total += 1
        self.totals.note(self.delay)
        return self.delay
