"""The pause before a worker or a background task that has ended is started again."""

FIRST_SECONDS = 0.5
MOST_SECONDS = 30.0
LONG_LIFE_SECONDS = 10.0


class Backoff:
    """No pause after a long life; else a pause that doubles with each early death."""

    def __init__(self) -> None:
        self._next = FIRST_SECONDS

    def seconds(self, lived: float) -> float:
        """The pause in seconds. A worker's life (`lived`, seconds) begins with its first answer."""
        if lived >= LONG_LIFE_SECONDS:
            self._next = FIRST_SECONDS
            return 0.0
        wait, self._next = self._next, min(self._next * 2.0, MOST_SECONDS)
        return wait
