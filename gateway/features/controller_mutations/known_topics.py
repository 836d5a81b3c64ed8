"""What a gateway has just seen happen to topics, before every broker knows of it."""

import logging
from collections import OrderedDict
from typing import Final, NamedTuple

RECENT_SECONDS: Final = 5.0
"""For so long a change that was confirmed here counts more than what a broker says, which may not have heard of it yet."""

MAX_RECENT: Final = 10_000

_log = logging.getLogger("weir.mutations")


class KnownTopic(NamedTuple):
    """A topic and its number of partitions, 0 where it is gone."""

    name: str
    partitions: int
    since: float


class KnownTopics:
    """Shared by all connections. `default_partitions` is the cluster's num.partitions, None as long as nobody knows it."""

    def __init__(self) -> None:
        self.default_partitions: int | None = None
        self._recent: OrderedDict[str, KnownTopic] = OrderedDict()
        self._names: OrderedDict[bytes, str] = OrderedDict()
        self._guessed: set[str] = set()

    def learn_default(self, partitions: int) -> None:
        """A broker has told its num.partitions."""
        self.default_partitions = partitions

    def changed(self, name: str, partitions: int, now: float, topic_id: bytes | None = None) -> None:
        """A topic has so many partitions now, confirmed by a broker; 0: it is gone."""
        self._recent[name] = KnownTopic(name, partitions, now)
        self._recent.move_to_end(name)
        if topic_id is not None:
            self._names[topic_id] = name
            self._names.move_to_end(topic_id)
        for memory in (self._recent, self._names):
            if len(memory) > MAX_RECENT:
                memory.popitem(last=False)

    def recent(self, name: str, now: float) -> int | None:
        """The partitions of a topic that has changed a moment ago; None where a broker knows as much."""
        known = self._recent.get(name)
        return known.partitions if known is not None and now - known.since < RECENT_SECONDS else None

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of a topic that was created here and may not be known everywhere yet."""
        return self._names.get(topic_id)

    def guess(self, what: str) -> int:
        """One partition, for want of something better, which is said once: `what` is not known."""
        if what not in self._guessed:
            self._guessed.add(what)
            _log.warning("%s: counted as one partition until the broker's answers tell more", what)
        return 1
