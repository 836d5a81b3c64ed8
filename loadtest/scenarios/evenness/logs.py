"""Measures producers: the bytes in a topic's log, from its files on the broker's disk.

The producers' own sockets would not do: they accept bytes that the quota has not admitted yet. A batch in the log is its
request without the header, about 100 bytes less than the quota counts.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

INTERVAL_SECONDS = 0.25

Series = list[tuple[float, int]]
"""(monotonic seconds, bytes so far) of each sample."""


class Sampler(ABC):
    """Calls `sample` four times a second between `start` and `stop`, in its own thread."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def sample(self, now: float) -> None:
        """Take one sample; `now` is monotonic seconds."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._end.wait(max(0.0, due - time.monotonic())):
            self.sample(time.monotonic())
            due += INTERVAL_SECONDS


class LogCounter(Sampler):
    """Samples the size of the only partition of each of `topics` in a broker's log directory."""

    def __init__(self, directory: Path, topics: Sequence[str]) -> None:
        super().__init__()
        self._folders = {topic: directory / f"{topic}-0" for topic in topics}
        self._series: dict[str, Series] = {topic: [] for topic in topics}

    def series(self, topic: str) -> Series:
        """The size of the topic's log at each sample."""
        return list(self._series[topic])

    def sample(self, now: float) -> None:
        for topic, folder in self._folders.items():
            self._series[topic].append((now, log_bytes(folder)))


def log_bytes(folder: Path) -> int:
    """The size of a partition's segments; 0 before the partition exists."""
    total = 0
    with suppress(FileNotFoundError):
        for entry in folder.iterdir():
            if entry.suffix == ".log":
                total += entry.stat().st_size
    return total
