"""Requests that are collected until they are whole, and the bytes that all of them may hold in one gateway."""

from typing import Final

from gateway.proxy.handler import EndConnection

MAX_COLLECTED_BYTES: Final = 16 * 1024 * 1024
"""The bytes of unfinished requests that all connections of a gateway may hold, above `UNCOUNTED_BYTES` each."""

UNCOUNTED_BYTES: Final = 16 * 1024
"""The bytes that each connection may always hold, so that no client can keep others from small requests."""


class CollectBudget:
    """The bytes that all connections of one gateway hold now."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = 0


class Collected:
    """The beginning of one connection's request, until the rest has come."""

    __slots__ = ("_budget", "_counted", "_data", "_limited")

    def __init__(self, budget: CollectBudget) -> None:
        self._budget = budget
        self._counted = 0
        self._data = bytearray()
        self._limited = True

    def __len__(self) -> int:
        return len(self._data)

    def __bool__(self) -> bool:
        return len(self._data) > 0

    def begin(self, piece: memoryview, *, limited: bool) -> None:
        """Keep the first bytes of a request, which counts towards the budget if it is `limited`. Raises EndConnection."""
        self._limited = limited
        self.add(piece)

    def add(self, piece: memoryview) -> None:
        """Keep the next bytes of the request. Raises EndConnection if all connections together hold too many."""
        self._data += piece
        if not self._limited:
            return
        self._count(max(0, len(self._data) - UNCOUNTED_BYTES))
        if self._budget.held > MAX_COLLECTED_BYTES:
            raise EndConnection(
                f"the gateway holds {self._budget.held} bytes of unfinished requests, more than {MAX_COLLECTED_BYTES}:"
                " send smaller requests of this kind, or fewer at a time",
                limit="collected_bytes",
            )

    def take(self) -> bytes:
        """Return the bytes so far, and drop them."""
        data = bytes(self._data)
        self.drop()
        return data

    def drop(self) -> None:
        self._data = bytearray()
        self._count(0)

    def _count(self, count: int) -> None:
        self._budget.held += count - self._counted
        self._counted = count
