"""Takes samples at a steady rate in its own thread."""

import threading
import time
from abc import ABC, abstractmethod

INTERVAL_SECONDS = 0.25

Series = list[tuple[float, int]]
"""(monotonic seconds, bytes so far) of each sample."""


class Sampler(ABC):
    """Calls `sample` four times a second between `start` and `stop`."""

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
