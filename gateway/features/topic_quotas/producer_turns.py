"""The turns of producers whose topic was over its share a moment ago.

A rejected producer comes again after a time of its own. A topic within its share again has room for some bytes, and they are
used up within milliseconds. The producers that came most often got nearly all of them. So each producer has an equal part of
the next bytes, and is rejected beyond its part while others have not had theirs.
"""

from math import inf
from typing import Final

from gateway.features.topic_quotas.topic_meters import TopicUse

TURN_SECONDS: Final = 1.5
"""Nobody waits longer for others once the topic is within its share. Producers come again after 1.2 s at most
(`retry.backoff.max.ms` of 1 s, and 20 % at random). The parts of all producers together are the bytes of this time."""

_PEERS: Final = object()
"""The producers of all peers together, as one producer: peers do not report the number of theirs."""

MAX_PLACES: Final = 100_000
"""The producers of all topics that may have turns, each at each topic: 10 MB. Beyond that, the oldest round ends."""


class _Round:
    """The bytes that each producer of a topic has had since the round began, up to `part` of them.

    `lacking` producers have had less than their part. The round ends at the time `until`.
    """

    __slots__ = ("_elsewhere_bytes", "lacking", "part", "until", "used")

    def __init__(self, use: TopicUse, threshold: float) -> None:
        self.used: dict[object, float] = {}
        self._elsewhere_bytes = use.elsewhere_bytes
        self.part = max(threshold * TURN_SECONDS, 1.0)
        self.lacking = 0
        self.until = inf

    def join(self, producer: object) -> bool:
        """Give a producer its place. Returns False if it has one."""
        if producer in self.used:
            return False
        self.used[producer] = 0.0
        self.lacking += 1
        return True

    def follow_peers(self, use: TopicUse, now: float) -> bool:
        """Count the bytes through peers. Returns True if the peers get their place, as they have used the topic lately."""
        joined = use.elsewhere is not None and use.elsewhere.measure(now) > 0.0 and self.join(_PEERS)
        if _PEERS in self.used:
            self._add(_PEERS, use.elsewhere_bytes - self._elsewhere_bytes)
        self._elsewhere_bytes = use.elsewhere_bytes
        return joined

    def _add(self, producer: object, size: int) -> None:
        used = self.used[producer]
        self.used[producer] = used + size
        if used < self.part <= used + size:
            self.lacking -= 1

    def refuses(self, producer: object, size: int, threshold: float) -> bool:
        used = self.used[producer]
        if used >= self.part and self.lacking == 0:
            self._begin_again(threshold)
            used = self.used[producer]
        if used >= self.part:
            return True
        self._add(producer, size)
        return False

    def _begin_again(self, threshold: float) -> None:
        """All have had their parts. The bytes above the least of them count in the next round, too."""
        least = min(self.used.values())
        self.part = max(threshold * TURN_SECONDS / len(self.used), 1.0)
        self.used = {producer: used - least for producer, used in self.used.items()}
        self.lacking = sum([1 for used in self.used.values() if used < self.part])


class ProducerTurns:
    """The turns at all topics. A producer is an object of one connection."""

    __slots__ = ("_max_places", "_places", "_rounds", "_until")

    def __init__(self, max_places: int = MAX_PLACES) -> None:
        self._max_places = max_places
        self._rounds: dict[TopicUse, _Round] = {}  # in the order of their beginnings
        self._places = 0
        self._until = -inf

    def contested(self, now: float) -> bool:
        """True if some topic was over its share less than `TURN_SECONDS` ago."""
        return now < self._until

    def refuses(self, use: TopicUse, producer: object, size: int, threshold: float, now: float, *, over: bool) -> bool:
        """True if `size` bytes for the topic are to be rejected: it is `over` its share, or it is the turn of others."""
        if now >= self._until:
            self._rounds.clear()
            self._places = 0
        found = self._rounds.get(use)
        if found is not None and now >= found.until:
            self._end(use)
            found = None
        if found is None:
            if not over:
                return False
            found = self._rounds[use] = _Round(use, threshold)
        if over:
            self._until = found.until = now + TURN_SECONDS
        self._places += found.join(producer) + found.follow_peers(use, now)
        while self._places > self._max_places:
            self._end(next(iter(self._rounds)))
        return over or found.refuses(producer, size, threshold)

    def _end(self, use: TopicUse) -> None:
        self._places -= len(self._rounds.pop(use).used)
