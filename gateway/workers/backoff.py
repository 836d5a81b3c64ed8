"""How long the place of a worker that died stays empty."""

FIRST_SECONDS = 0.5
MOST_SECONDS = 30.0
LONG_LIFE_SECONDS = 10.0


class Backoff:
    """A worker that has lived for a while is replaced at once, one that dies at its start later and later."""

    def __init__(self) -> None:
        self._next = FIRST_SECONDS

    def seconds(self, lived: float) -> float:
        """What to wait after the death of one that has lived for so many seconds since it first answered."""
        if lived >= LONG_LIFE_SECONDS:
            self._next = FIRST_SECONDS
            return 0.0
        wait, self._next = self._next, min(self._next * 2.0, MOST_SECONDS)
        return wait
