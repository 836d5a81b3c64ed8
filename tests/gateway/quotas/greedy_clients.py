"""Clients in simulated time: each sends its next request at once, or by a pace, and waits for the longest throttle time."""

from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from gateway.quotas.engine import QuotaEngine

START = 5_000.0
SERVICE_SECONDS = 0.0001


class Sender(NamedTuple):
    """`rate` per second for all `connections` together; None: unpaced. `active(seconds)` says if it sends now."""

    user: str
    active: object = lambda seconds: True
    rate: float | None = None
    gateway: int = 0
    connections: int = 3


class Traffic:
    """The bytes of each user in each simulated second. `step(now)` is called every `interval` seconds."""

    def __init__(self, engines: list[QuotaEngine], step, interval=0.2, size=16_384, kind="produce"):
        self.engines, self.step, self.interval, self.size, self.kind = engines, step, interval, size, kind
        self.now = START
        self.seconds: list[dict[str, int]] = []
        self._free = START

    def run(self, senders: list[Sender], seconds: int) -> None:
        events, numbers = [], count()
        begin, end = self.now, self.now + seconds
        self.seconds += [{} for _ in range(seconds)]
        heappush(events, (begin, next(numbers), None))
        for sender in senders:
            for connection in range(sender.connections):
                heappush(events, (begin + 0.001 * connection, next(numbers), sender))
        while events[0][0] < end:
            self.now, _, sender = heappop(events)
            if sender is None:
                self.step(self.now)
                heappush(events, (self.now + self.interval, next(numbers), None))
            else:
                heappush(events, (self._send(sender, self.now - begin), next(numbers), sender))
        self.now = end

    def _send(self, sender: Sender, seconds: float) -> float:
        """Send one request, and return the time of the next."""
        if not sender.active(seconds):
            return self.now + 0.01
        self._free = sent = max(self.now, self._free) + SERVICE_SECONDS
        whole = self.seconds[min(int(sent - START), len(self.seconds) - 1)]
        whole[sender.user] = whole.get(sender.user, 0) + self.size
        engine = self.engines[sender.gateway]
        waits = [bucket.charge(self.size, sent)[0] for bucket in self.path(engine, sender.user, sent)]
        pace = 0.0 if sender.rate is None else self.size * sender.connections / sender.rate
        return max(sent + max(waits), self.now + pace)

    def path(self, engine, user, now):
        path = engine.acquire_path(self.kind, user, "", now)
        for bucket in path:
            engine.release(bucket, now)
        return path

    def shares(self, capacity: float, begin: int, end: int) -> dict[str, float]:
        """Each user's part of the capacity between two seconds."""
        users = {user for second in self.seconds[begin:end] for user in second}
        return {
            user: sum(second.get(user, 0) for second in self.seconds[begin:end]) / (end - begin) / capacity for user in users
        }

    def whole(self, capacity: float, begin: int, end: int) -> list[float]:
        """The used part of the capacity in each second."""
        return [sum(second.values()) / capacity for second in self.seconds[begin:end]]
