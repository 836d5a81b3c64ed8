"""Requests that are collected until they are whole and decided, and the bytes that all of them may hold in one gateway."""

from typing import Final

from gateway.proxy.handler import EndConnection

MAX_COLLECTED_BYTES: Final = 16 * 1024 * 1024
"""The bytes of unfinished requests without records that all connections of a gateway may hold, above `UNCOUNTED_BYTES` each."""

MAX_RECORDS_BYTES: Final = 256 * 1024 * 1024
"""The limit for Produce requests, which have a budget of their own. One may have `connections.max_frame_bytes`."""

UNCOUNTED_BYTES: Final = 16 * 1024
"""The bytes that each connection may always hold, so that no client can keep others from small requests."""


class Budget:
    """The bytes, above `UNCOUNTED_BYTES` each, that several connections hold together. `holders` are those that hold any."""

    __slots__ = ("held", "holders", "maximum")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.held = 0
        self.holders = 0

    def count(self, before: int, after: int) -> None:
        """A connection holds `after` bytes in place of `before`."""
        self.held += after - before
        self.holders += (after > 0) - (before > 0)

    def exceeded_by(self, held: int) -> bool:
        """True if all hold too many bytes, and a connection with `held` of them has more than its share.

        The others may go on. Otherwise a client with long requests could end the connections of those with short ones.
        """
        return self.held > self.maximum and held * self.holders >= self.held


class CollectBudget:
    """The bytes that all connections of one gateway hold now, of requests with records and without."""

    __slots__ = ("records", "requests")

    def __init__(self) -> None:
        self.requests = Budget(MAX_COLLECTED_BYTES)
        self.records = Budget(MAX_RECORDS_BYTES)


class Collected:
    """The beginning of one connection's request, until the rest has come."""

    __slots__ = ("_budget", "_budgets", "_counted", "_data")

    def __init__(self, budgets: CollectBudget) -> None:
        self._budgets = budgets
        self._budget = budgets.requests
        self._counted = 0
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def __bool__(self) -> bool:
        return len(self._data) > 0

    def begin(self, piece: memoryview, *, records: bool) -> None:
        """Keep the first bytes of a request. Raises EndConnection."""
        # The bytes of the request before may still count for the other budget.
        self._count(0)
        self._budget = self._budgets.records if records else self._budgets.requests
        self.add(piece)

    def add(self, piece: memoryview) -> None:
        """Keep the next bytes of the request. Raises EndConnection if all connections together hold too many."""
        self._data += piece
        self._count(max(0, len(self._data) - UNCOUNTED_BYTES))
        budget = self._budget
        if budget.exceeded_by(self._counted):
            raise EndConnection(
                f"the gateway holds {budget.held} bytes of unfinished requests, more than {budget.maximum}:"
                " send smaller requests of this kind, or fewer at a time",
                limit="collected_bytes",
            )

    @property
    def counted(self) -> bool:
        """True while the budget counts bytes of this connection."""
        return self._counted > 0

    def take(self, rest: memoryview) -> bytes:
        """Return the bytes so far and those of `rest` behind them, and keep none. A request may have 100 MB: it is copied once.

        The bytes count until `drop`, as the caller may have to hold them.
        """
        data, self._data = self._data, bytearray()
        data += rest
        return bytes(data)

    def drop(self) -> None:
        """Keep and count nothing any more."""
        self._data = bytearray()
        self._count(0)

    def _count(self, count: int) -> None:
        self._budget.count(self._counted, count)
        self._counted = count
