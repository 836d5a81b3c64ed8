"""The topics in which Weir keeps its own data. No quota counts their traffic, because no client causes it."""

from collections.abc import Callable, Iterable
from typing import Final

from gateway.quotas.token_bucket import TokenBucket
from protocol.bodies.produce import FLEXIBLE_SINCE, TOPIC_ID_SINCE, topic_field
from protocol.encoding import array_count

FREE_BYTES_PER_SECOND: Final = 1 << 20
FREE_BURST_SECONDS: Final = 16.0
"""The amount of Produce to Weir's own topics that is charged to no client, for all clients of a gateway together."""


def mark_at(version: int) -> int:
    """The offset in `prefixes` of the first byte of the topic's name or id; of long names, of the byte before that byte."""
    return 1 if version >= TOPIC_ID_SINCE else 2 if version >= FLEXIBLE_SINCE else 6


class OwnTopics:
    """Weir's own topics by name, and by id as soon as the id is known.

    `on_change` is called after a change. `keys` are the bytes of the names and the ids, as in Produce requests.
    """

    __slots__ = ("_free", "_ids", "_on_change", "_prefixes", "keys", "names")

    def __init__(self, names: Iterable[str] = (), now: float = 0.0, *, on_change: Callable[[], None] | None = None) -> None:
        self._on_change = on_change
        self.names = frozenset(names)
        self.keys: frozenset[bytes] = frozenset()
        self._ids: dict[str, bytes] = {}
        self._prefixes: dict[int, tuple[bytes, ...]] = {}
        self._free = TokenBucket(FREE_BYTES_PER_SECOND, FREE_BURST_SECONDS, now)
        self._collect()

    def rename(self, names: Iterable[str]) -> None:
        if frozenset(names) != self.names:
            self.names = frozenset(names)
            self._ids = {name: topic_id for name, topic_id in self._ids.items() if name in self.names}
            self._changed()

    def identify(self, name: str, topic_id: bytes) -> None:
        """Learn the id of a topic. Another topic's id and an id of zeros are ignored."""
        if name in self.names and any(topic_id) and self._ids.get(name) != topic_id:
            self._ids[name] = topic_id
            self._changed()

    def is_own(self, key: bytes) -> bool:
        return key in self.keys

    def prefixes(self, version: int) -> tuple[bytes, ...]:
        """The bytes after the timeout, of each Produce request of that version whose only topic is Weir's own."""
        found = self._prefixes.get(version)
        if found is None:
            one = array_count(1, compact=version >= FLEXIBLE_SINCE)
            keys = self._ids.values() if version >= TOPIC_ID_SINCE else [name.encode() for name in self.names]
            found = self._prefixes[version] = tuple([one + topic_field(version, key) for key in keys])
        return found

    def marks(self, version: int) -> bytes:
        """For each value of the byte at `mark_at`: 1 if one of `prefixes` has that value there, else 0.

        Nearly all requests are recognized by this byte, without a comparison with the prefixes.
        """
        at = mark_at(version)
        found = {prefix[at] for prefix in self.prefixes(version)}
        return bytes([value in found for value in range(256)])

    def is_free(self, size: int, now: float) -> bool:
        """True if a Produce request of `size` bytes would be charged to no client."""
        return self._free.tokens(now) >= size

    def take_free(self, size: int, now: float) -> bool:
        """True if a Produce request of `size` bytes is charged to no client. The bytes count for the free amount."""
        if not self.is_free(size, now):
            return False
        self._free.charge(size, now)
        return True

    def _changed(self) -> None:
        self._collect()
        if self._on_change is not None:
            self._on_change()

    def _collect(self) -> None:
        self.keys = frozenset([*[name.encode() for name in self.names], *self._ids.values()])
        self._prefixes = {}
