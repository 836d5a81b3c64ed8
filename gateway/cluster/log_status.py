"""The state of a topic's reader and publisher, for metrics and messages."""

from dataclasses import dataclass, field
from typing import Final

AGAIN_SECONDS: Final = 60.0


@dataclass(slots=True)
class LoggedCauses:
    """Decides which failures in a row are logged: the first one, and one with another cause than the last logged one.

    Two causes may alternate with each attempt. So each cause is logged at most once in `AGAIN_SECONDS`.
    """

    _last: str | None = None
    _logged_at: dict[str, float] = field(default_factory=dict)

    def is_news(self, cause: str, now: float) -> bool:
        """True if a failure with this cause is to be logged. `now` is monotonic seconds."""
        if cause == self._last or now - self._logged_at.get(cause, float("-inf")) < AGAIN_SECONDS:
            return False
        self._last = cause
        self._logged_at[cause] = now
        return True

    def clear(self) -> None:
        """Note a success. The next failure is logged."""
        self._last = None
        self._logged_at.clear()


@dataclass(slots=True)
class LinkStatus:
    """`connected` is True if the last attempt to read or to write succeeded; `problem` is empty then."""

    connected: bool = False
    problem: str = ""
    causes: LoggedCauses = field(default_factory=LoggedCauses)


@dataclass(slots=True)
class LogStatus:
    """Status for metrics and messages.

    `caught_up` is True after the reader has reached the end that the topic had at the first read. `behind` counts the offsets
    that the last read left. `interrupted` is False while the reader is at the end. It becomes True by a failed read, but not by
    a missing topic. `unreadable_batches_total` counts skipped batches. `published_at` is monotonic seconds.
    """

    reader: LinkStatus = field(default_factory=LinkStatus)
    publisher: LinkStatus = field(default_factory=LinkStatus)
    caught_up: bool = False
    behind: int = 0
    interrupted: bool = True
    records_total: int = 0
    unreadable_batches_total: int = 0
    published_at: float | None = None
    published_total: int = 0
    publication_errors_total: int = 0

    def publication_age(self, now: float) -> float | None:
        """The seconds since the last publication, None before the first one."""
        return None if self.published_at is None else now - self.published_at

    @property
    def skipped(self) -> dict[str, int]:
        return {"unreadable_batch": self.unreadable_batches_total} if self.unreadable_batches_total else {}
