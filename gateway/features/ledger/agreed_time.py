"""The wall clock for decisions that can't be undone: a clock that was wrong for one look decides nothing."""

from collections import deque

AGREED_SECONDS = 3_600.0
"""So long the looks have to agree. A clock that was set wrong, by hand or at a boot, is usually corrected by then."""


class AgreedTime:
    """Compares the wall clock with the monotonic one at each look. Both are in seconds."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, float]] = deque()  # monotonic time, and by how much the wall clock was ahead of it

    def look(self, monotonic: float, wall: float) -> float | None:
        """The earliest time that it is now by any look of the last `AGREED_SECONDS`; None until the looks go back so far."""
        looks = self._looks
        looks.append((monotonic, wall - monotonic))
        while len(looks) > 1 and monotonic - looks[1][0] >= AGREED_SECONDS:
            looks.popleft()
        if monotonic - looks[0][0] < AGREED_SECONDS:
            return None
        return monotonic + min(ahead for _, ahead in looks)
