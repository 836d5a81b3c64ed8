"""Sockets of clients that connect too often: kept open for a while and then closed, so that they don't come back at once."""

from heapq import heappop, heappush
from typing import Protocol


class Closable(Protocol):
    """What is held: a socket."""

    def close(self) -> None:
        """Close it."""
        ...


class HeldSockets:
    """At most `max_held` of them. Times are monotonic seconds; nothing is read from them and nothing is made for them."""

    def __init__(self, max_held: int) -> None:
        self._max_held = max_held
        self._by_end: list[tuple[float, int, Closable]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._by_end)

    def hold(self, held: Closable, until: float) -> bool:
        """Keep it open until then; False: there are too many already, and it is still the caller's to close."""
        if len(self._by_end) >= self._max_held:
            return False
        self._count += 1
        heappush(self._by_end, (until, self._count, held))
        return True

    def close_due(self, now: float) -> float | None:
        """Close those whose time is over; returns when the next one's will be, None if there is none."""
        while self._by_end and self._by_end[0][0] <= now:
            heappop(self._by_end)[2].close()
        return self._by_end[0][0] if self._by_end else None

    def close_all(self) -> None:
        """Close every one of them."""
        while self._by_end:
            self._by_end.pop()[2].close()
