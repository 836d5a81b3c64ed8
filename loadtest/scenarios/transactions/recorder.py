"""The record of a run while its clients write to it from many threads."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

from loadtest.scenarios.transactions.history import Entry


class Recorder:
    """Collects operations and throttle times. `now` is in seconds since the start of the run."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.errors: list[str] = []
        self.throttles: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        self.over = threading.Event()
        self._closed = False
        self._began = time.monotonic()

    def now(self) -> float:
        return round(time.monotonic() - self._began, 4)

    def add(self, entry: Entry) -> None:
        if not self._closed:
            self.entries.append(entry)

    def close(self, rest: Iterable[Entry]) -> None:
        """Add the rest of the history. Clients that still run can add nothing more."""
        self._closed = True
        self.entries += rest

    def note(self, process: str, error: object) -> None:
        """Record an error that the client met, for the reader of the summary."""
        self.errors.append(f"{process}: {error}")

    def throttled(self, process: str, seconds: float) -> None:
        """Record the throttle time of a response that `process` has just received."""
        now = self.now()
        self.throttles[process].append((now, now + seconds))

    def throttled_seconds(self) -> dict[str, float]:
        """For each client, the seconds in which at least one of its connections was throttled."""
        end = self.now()
        return {process: round(covered(times, end), 1) for process, times in sorted(self.throttles.items())}


def covered(intervals: Sequence[tuple[float, float]], limit: float) -> float:
    """The length of the union of intervals, up to `limit`."""
    total, reached = 0.0, 0.0
    for begin, end in sorted(intervals):
        begin, end = max(begin, reached), min(end, limit)
        total += max(end - begin, 0.0)
        reached = max(reached, end)
    return total
