"""Numbers that gateways report to each other: of open connections, for maxima of all gateways, and of producers in turns."""

from collections.abc import Container, Iterable, Mapping
from itertools import chain
from math import ceil
from typing import Final, Protocol

from gateway.features.sharing.use_message import MAX_COUNTS, MAX_TURNS, PeerCountKey, encoded_size

COUNTS_OF_ALL: Final = 2_000
"""The maximum number of counts that the messages of all members have in one interval."""

LEAST_COUNTS: Final = 20
"""The number of counts that a message may have in any case."""

MAX_KEPT: Final = 100_000
"""With more counts of all peers, only those of each peer's last message are kept."""


class SharedCounts(Protocol):
    """The numbers of open connections of this gateway that have a maximum, or of producers that take turns."""

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds with few counts. Each message has all of these; the others take turns if they are too many."""
        ...

    def open_counts(self, members: int, known: Container[PeerCountKey]) -> Iterable[tuple[PeerCountKey, int, int]]:
        """Each count that is `known` to peers, or at least half of one member's part of its maximum, with the maximum.

        Without such a count at any member, all members together have less than half of the maximum.
        """
        ...

    def heed_peers(self, peers: Mapping[PeerCountKey, int], parts: int) -> None:
        """Count the connections of peers as well. This gateway has one part of `parts` of each maximum."""
        ...


class PeerCounts:
    """The counts of all living peers, and their sums. Each of `own` gets all sums whenever they change."""

    def __init__(self, *own: SharedCounts) -> None:
        self._own = own
        self._few = frozenset[str]().union(*(each.kinds for each in own))
        self._queue: dict[PeerCountKey, None] = {}  # own counts that take turns: those that have waited longest come first
        self._messages: dict[str, list[Mapping[PeerCountKey, int]]] = {}  # of each peer, the last one at the end
        self._of: dict[str, dict[PeerCountKey, int]] = {}
        self._kept = 0  # counts in all of `_messages`
        self._sums: dict[PeerCountKey, int] = {}
        self._parts = 1

    def receive(self, identity: str, counts: Mapping[PeerCountKey, int], turns: int = 1) -> None:
        """Replace the counts of a peer by those of its last `turns` messages, of which this is the last one."""
        messages = self._messages.setdefault(identity, [])
        messages.append(counts)
        dropped = messages[: -turns if self._kept <= MAX_KEPT else -1]
        del messages[: len(dropped)]
        self._kept += len(counts) - sum(map(len, dropped))
        known = self._of.setdefault(identity, {})
        changed = False
        for key in counts.keys() | set[PeerCountKey]().union(*dropped):
            count = next((each[key] for each in reversed(messages) if key in each), 0)
            changed |= self._replace(known, key, count)
        if changed:
            self._update_own()

    def _replace(self, known: dict[PeerCountKey, int], key: PeerCountKey, count: int) -> bool:
        """Replace one count of a peer. True if it has changed."""
        before = known.get(key, 0)
        if count == before:
            return False
        total = self._sums.get(key, 0) + count - before
        for counts, value in ((known, count), (self._sums, total)):
            if value:
                counts[key] = value
            else:
                counts.pop(key, None)
        return True

    def forget(self, identity: str) -> None:
        """The peer has left or is silent: its connections are closed."""
        self.receive(identity, {})
        del self._messages[identity], self._of[identity]

    def divide(self, parts: int) -> None:
        """Give this gateway one part of `parts` of each maximum."""
        if parts != self._parts:
            self._parts = parts
            self._update_own()

    def chosen(self, members: int, room: int) -> tuple[dict[PeerCountKey, int], int, int]:
        """The counts to publish in a message with `room` bytes for them, the turns, and how many are left out of the message.

        So many messages as there are turns have each count at least once. The few counts come first, then those that have
        waited longest. New ones wait in the order of their fullness.
        """
        known = chain.from_iterable(each.open_counts(members, self._sums) for each in self._own)
        found = sorted(known, key=lambda each: -each[1] / each[2])
        counts = {key: count for key, count, _ in found}
        few = [key for key in counts if key[0] in self._few][:MAX_COUNTS]
        waiting = [key for key in {**self._queue, **counts} if key in counts and key[0] not in self._few]
        most = min(MAX_COUNTS - len(few), max(LEAST_COUNTS, COUNTS_OF_ALL // members))
        chosen: dict[PeerCountKey, int] = {}
        for key in (*few, *waiting[:most]):
            room -= _ROW_BYTES + encoded_size(key[1])
            if room < 0:
                break
            chosen[key] = counts[key]
        left_out = len(counts) - len(chosen)
        self._queue = dict.fromkeys(key for key in waiting if key not in chosen)
        if not left_out:
            return chosen, 1, 0
        self._queue |= dict.fromkeys(key for key in waiting if key in chosen)
        turns = ceil(len(waiting) / max(1, len(waiting) - left_out)) + 1  # one more, as a message may be lost
        return chosen, min(turns, MAX_TURNS), left_out

    def _update_own(self) -> None:
        for each in self._own:
            each.heed_peers(self._sums, self._parts)


_ROW_BYTES: Final = 50
"""The maximum of a row without its name."""
