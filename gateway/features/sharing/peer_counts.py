"""Open connections of which gateways inform each other, so that a maximum number holds for all of them together."""

from collections.abc import Container, Iterable, Mapping
from typing import Final, Protocol

from gateway.features.sharing.use_message import MAX_COUNTS, CountKey

COUNTS_OF_ALL: Final = 2_000
"""The maximum number of counts that the messages of all members have in one interval."""

LEAST_COUNTS: Final = 20
"""The number of counts that a message may have in any case."""


class SharedCounts(Protocol):
    """The numbers of open connections of this gateway that have a maximum."""

    def open_counts(self, members: int, known: Container[CountKey]) -> Iterable[tuple[CountKey, int, int]]:
        """Each count that is `known` to peers, or at least half of one member's part of its maximum, with the maximum.

        Without such a count at any member, all members together have less than half of the maximum.
        """
        ...

    def heed_peers(self, peers: Mapping[CountKey, int], parts: int) -> None:
        """Count the connections of peers as well. This gateway has one part of `parts` of each maximum."""
        ...


class PeerCounts:
    """The counts of all living peers, and their sums. `own` gets the sums whenever they change."""

    def __init__(self, own: SharedCounts | None) -> None:
        self._own = own
        self._of: dict[str, Mapping[CountKey, int]] = {}
        self._sums: dict[CountKey, int] = {}
        self._parts = 1

    def receive(self, identity: str, counts: Mapping[CountKey, int]) -> None:
        """Replace the counts of a peer by those of its last message."""
        before = self._of.get(identity, {})
        if counts == before:
            return
        self._of[identity] = counts
        for key in before.keys() | counts.keys():
            total = self._sums.get(key, 0) + counts.get(key, 0) - before.get(key, 0)
            if total:
                self._sums[key] = total
            else:
                self._sums.pop(key, None)
        self._tell()

    def forget(self, identity: str) -> None:
        """The peer has left or is silent: its connections are closed."""
        self.receive(identity, {})
        self._of.pop(identity, None)

    def divide(self, parts: int) -> None:
        """Give this gateway one part of `parts` of each maximum."""
        if parts != self._parts:
            self._parts = parts
            self._tell()

    def chosen(self, members: int, room: int) -> tuple[dict[CountKey, int], int]:
        """The counts to publish, the fullest first, in a message with `room` bytes for them; and how many are left out."""
        if self._own is None:
            return {}, 0
        found = sorted(self._own.open_counts(members, self._sums), key=lambda each: -each[1] / each[2])
        chosen: dict[CountKey, int] = {}
        for key, count, _ in found[: min(MAX_COUNTS, max(LEAST_COUNTS, COUNTS_OF_ALL // members))]:
            room -= _ROW_BYTES + 6 * len(key[1])
            if room < 0:
                break
            chosen[key] = count
        return chosen, len(found) - len(chosen)

    def _tell(self) -> None:
        if self._own is not None:
            self._own.heed_peers(self._sums, self._parts)


_ROW_BYTES: Final = 50
