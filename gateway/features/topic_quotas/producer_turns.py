"""The turns of producers whose topic was over its share a moment ago.

A rejected producer comes again after a time of its own. A topic within its share again has room for some bytes, and they are
used up within milliseconds. The producers that came most often got nearly all of them. So each producer has an equal part of
the next bytes, and is rejected beyond its part while others have not had theirs.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from math import inf
from typing import Final

from gateway.features.topic_quotas.topic_meters import TopicUse

TURN_SECONDS: Final = 1.5
"""Nobody waits longer for others once the topic is within its share. Producers come again after 1.2 s at most
(`retry.backoff.max.ms` of 1 s, and 20 % at random)."""

ROUND_SECONDS: Final = 9.0
"""The parts of all producers together are the bytes of this time, so each of them comes several times in a round. Many would
come too late for a short round, and a lone producer at another gateway would have the rest of each round."""

MAX_PLACES: Final = 100_000
"""The producers of all topics that may have turns, each at each topic: 10 MB. Beyond that, the oldest round ends."""


class TopicProducer:
    """One connection. `owner` is its client's (`owner_of`). `topics` are those in whose turns it has taken part."""

    __slots__ = ("owner", "topics")

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.topics: set[TopicUse] = set()


_PEERS: Final = TopicProducer("peers")
"""The producers of all peers: as many as the peers report, and at least one."""

PRODUCERS: Final = "producers"
"""The kind with which gateways report to each other how many producers a topic has. The name is that of the topic's use."""

MAX_REPORTED: Final = 100
"""The maximum number of topics for which a gateway reports its producers: those whose rounds began first."""


class _Round:
    """The bytes that each producer of a topic has had since the round began, up to `part` of them.

    `lacking` producers have had less than their part. The round ends at the time `until`. A connection that ends leaves its
    place to the next one of its owner. So a new connection brings no new part, and nobody waits for one that is gone. Peers
    have `elsewhere` producers. In `used` they are one producer, with the average of their bytes.
    """

    __slots__ = ("_elsewhere_bytes", "_left", "elsewhere", "lacking", "name", "part", "until", "used")

    def __init__(self, name: str, use: TopicUse, threshold: float) -> None:
        self.name = name
        self.elsewhere = 1
        self.used: dict[TopicProducer, float] = {}
        self._left: dict[str, list[TopicProducer]] = {}
        self._elsewhere_bytes = use.elsewhere_bytes
        self.part = max(threshold * TURN_SECONDS, 1.0)
        self.lacking = 0
        self.until = inf

    def join(self, producer: TopicProducer) -> None:
        """Give a producer a place, if it has none."""
        if producer in self.used:
            return
        left = self._left.get(producer.owner)
        self.used[producer] = used = self.used.pop(left.pop()) if left else 0.0
        self.lacking += used < self.part

    def leave(self, producer: TopicProducer) -> None:
        self.lacking -= self.used[producer] < self.part
        self._left.setdefault(producer.owner, []).append(producer)

    def follow_peers(self, use: TopicUse, producers: int, now: float) -> None:
        """Count the bytes through peers. They get their place if they have `producers`, or have used the topic lately.

        A peer without a round reports no number, so the last number counts.
        """
        if producers or (use.elsewhere is not None and use.elsewhere.measure(now) > 0.0):
            self.join(_PEERS)
        if _PEERS in self.used:
            before, self.elsewhere = self.elsewhere, producers or self.elsewhere
            new = use.elsewhere_bytes - self._elsewhere_bytes
            self._set(_PEERS, (self.used[_PEERS] * before + new) / self.elsewhere)
        self._elsewhere_bytes = use.elsewhere_bytes

    @property
    def here(self) -> int:
        """The producers of this gateway."""
        return len(self.used) - sum([len(places) for places in self._left.values()]) - (_PEERS in self.used)

    def _set(self, producer: TopicProducer, used: float) -> None:
        self.lacking += (used < self.part) - (self.used[producer] < self.part)
        self.used[producer] = used

    def refuses(self, producer: TopicProducer, size: int, threshold: float) -> bool:
        used = self.used[producer]
        if used >= self.part and self.lacking == 0:
            self._begin_again(threshold)
            used = self.used[producer]
        if used >= self.part:
            return True
        self._set(producer, used + size)
        return False

    def _begin_again(self, threshold: float) -> None:
        """All have had their parts. The bytes above the least of them count in the next round, too."""
        present = self.used.keys() - chain.from_iterable(self._left.values())
        least = min([self.used[producer] for producer in present])
        producers = len(present) - 1 + (self.elsewhere if _PEERS in present else 1)
        self.part = max(threshold * ROUND_SECONDS / producers, 1.0)
        self.used = {each: used - least for each, used in self.used.items() if used > least or each in present}
        left = {owner: [each for each in places if each in self.used] for owner, places in self._left.items()}
        self._left = {owner: places for owner, places in left.items() if places}
        self.lacking = sum([self.used[producer] < self.part for producer in present])


class ProducerTurns:
    """The turns at all topics. `peers` has the numbers of producers at peers, and others, by kind and name."""

    __slots__ = ("_max_places", "_places", "_rounds", "_until", "peers")

    def __init__(self, max_places: int = MAX_PLACES) -> None:
        self.peers: Mapping[tuple[str, str], int] = {}
        self._max_places = max_places
        self._rounds: dict[TopicUse, _Round] = {}  # in the order of their beginnings
        self._places = 0
        self._until = -inf

    def contested(self, now: float) -> bool:
        """True if some topic was over its share less than `TURN_SECONDS` ago."""
        return now < self._until

    def producers(self, now: float) -> Iterator[tuple[str, int]]:
        """The topics with turns, and the number of this gateway's producers at each of them."""
        for found in islice(self._rounds.values(), MAX_REPORTED if self.contested(now) else 0):
            here = found.here if now < found.until else 0
            if here:
                yield found.name, here

    def leave(self, producer: TopicProducer) -> None:
        """Its connection has ended."""
        for use in producer.topics:
            found = self._rounds.get(use)
            if found is not None and producer in found.used:
                found.leave(producer)

    def refuses(
        self, name: str, use: TopicUse, producer: TopicProducer, size: int, threshold: float, now: float, *, over: bool
    ) -> bool:
        """True if `size` bytes for the topic are to be rejected: it is `over` its share, or it is the turn of others.

        Peers know the topic by `name`.
        """
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
            found = self._rounds[use] = _Round(name, use, threshold)
        if over:
            self._until = found.until = now + TURN_SECONDS
        places = len(found.used)
        found.join(producer)
        producer.topics.add(use)
        found.follow_peers(use, self.peers.get((PRODUCERS, name), 0), now)
        refused = over or found.refuses(producer, size, threshold)
        self._places += len(found.used) - places
        while self._places > self._max_places:
            self._end(next(iter(self._rounds)))
        return refused

    def _end(self, use: TopicUse) -> None:
        self._places -= len(self._rounds.pop(use).used)
