"""Episodes of entities near or over their quotas: each event of an episode is reported once."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.quotas.entity import OTHER
from gateway.quotas.snapshot import BucketName, UsageRow, merge_rows
from gateway.steps import Steps

NEAR: Final = "near_quota"
THROTTLED: Final = "throttled"
ENDED: Final = "ended"

MAX_EPISODES: Final = 10_000

ProcessRows = Mapping[int, Sequence[UsageRow] | None]
"""The rows of active buckets by process. None: the process runs, and does not answer."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One event of an episode. `row` is the bucket's use at the event; at the end, it is the last use over the threshold.

    `seconds` is the time since the episode began, and `quiet_seconds` its last part, in which the entity was below its quota.
    `throttled_requests` and `peak_ratio` are those of the episode so far.
    `reported` are the events that the episode has had before this one.
    """

    event: str
    row: UsageRow
    seconds: float
    throttled_requests: int
    peak_ratio: float
    reported: tuple[str, ...] = ()
    quiet_seconds: float = 0.0


class Episode:
    """One entity's time near or over one quota. Times are monotonic seconds."""

    __slots__ = ("began", "busy_at", "peak_ratio", "reported", "row", "throttled_requests")

    def __init__(self, row: UsageRow, now: float) -> None:
        self.began = self.busy_at = now
        self.row = row
        self.throttled_requests = 0
        self.peak_ratio = 0.0
        self.reported: tuple[str, ...] = ()

    def notice(self, event: str, now: float) -> Notice:
        found = Notice(
            event,
            self.row,
            now - self.began,
            self.throttled_requests,
            self.peak_ratio,
            self.reported,
            now - self.busy_at,
        )
        self.reported = (*self.reported, event)
        return found


_ROWS: Final = 32
"""The rows of one step."""


class EpisodeTable:
    """The episodes of all entities. `near_ratio` is the used fraction of a quota at which an episode begins.

    An episode ends when its entity was below `near_ratio`, and was not throttled, for `quiet_seconds`. A throttle without a
    slow approach has no `NEAR`.
    """

    def __init__(self, near_ratio: float, quiet_seconds: float, max_episodes: int = MAX_EPISODES) -> None:
        self.near_ratio = near_ratio
        self.quiet_seconds = quiet_seconds
        self.left_out = 0
        self._max_episodes = max_episodes
        self._episodes: dict[BucketName, Episode] = {}
        # Both by process, of its last answer.
        self._rows: dict[int, list[UsageRow]] = {}
        self._throttled: dict[int, dict[BucketName, int]] = {}

    def __len__(self) -> int:
        return len(self._episodes)

    def observe(self, processes: ProcessRows, now: float) -> Steps[list[Notice]]:
        """The events since the last call. An entity without a row counts as idle.

        The last rows of a silent process count on, because nobody knows its clients' use. Those of an ended process do not.
        The steps of one call end before those of the next begin.
        """
        for process in self._rows.keys() - processes.keys():
            del self._rows[process], self._throttled[process]
        # Only the totals of one process grow with time. Their sum also changes with the processes that answer.
        grown: dict[BucketName, int] = {}
        for process, rows in processes.items():
            if rows is not None:
                yield from self._answered(process, rows, grown)
        merged = yield from merge_rows(self._rows.values())
        notices: list[Notice] = []
        for number, row in enumerate(merged, 1):
            if number % _ROWS == 0:
                yield
            growth = grown.get(row.bucket, 0)
            # A debt alone throttles nobody: a group with groups below it has no requests of its own.
            waits = row.throttle_left > 0.0 and row.bucket in self._episodes
            if growth > 0 or waits or row.used_ratio >= self.near_ratio:
                notices += self._busy(row, growth, now)
        for number, (name, episode) in enumerate(list(self._episodes.items()), 1):
            if number % _ROWS == 0:
                yield
            if now - episode.busy_at >= self.quiet_seconds:
                notices.append(episode.notice(ENDED, now))
                del self._episodes[name]
        return notices

    def _answered(self, process: int, rows: Iterable[UsageRow], grown: dict[BucketName, int]) -> Steps[None]:
        """Keep the rows of a process, and add the growth of its buckets' throttled requests to `grown`."""
        before = self._throttled.get(process)
        totals: dict[BucketName, int] = {}
        kept: list[UsageRow] = []
        for number, row in enumerate(rows, 1):
            if number % _ROWS == 0:
                yield
            if row.limit is None or OTHER in (row.user, row.client_id):
                continue
            kept.append(row)
            name = row.bucket
            total = totals[name] = row.throttled_total
            if row.throttled_seconds is None:
                continue
            # A process begins with totals of 0. Of a bucket that was idle, only throttles of the last minute count, as one.
            known = 0 if before is None else before.get(name, max(0, total - 1))
            growth = total - known if total >= known else total  # the engine counts from 0 again if it had forgotten the name
            grown[name] = grown.get(name, 0) + growth
        for name, total in (before or {}).items():
            if name in self._episodes:  # an idle bucket has no row, and its total counts on later in the episode
                totals.setdefault(name, total)
        self._rows[process], self._throttled[process] = kept, totals

    def _busy(self, row: UsageRow, growth: int, now: float) -> list[Notice]:
        name = row.bucket
        episode = self._episodes.get(name)
        if episode is None:
            if len(self._episodes) >= self._max_episodes:
                self.left_out += 1
                return []
            episode = self._episodes[name] = Episode(row, now)
        episode.busy_at = now
        episode.row = row
        episode.throttled_requests += growth
        episode.peak_ratio = max(episode.peak_ratio, row.used_ratio)
        if growth > 0:
            return [] if THROTTLED in episode.reported else [episode.notice(THROTTLED, now)]
        return [] if episode.reported else [episode.notice(NEAR, now)]


def is_wanted(events: Collection[str], notice: Notice) -> bool:
    """True if a target that wants `events` gets the notice. The end goes to targets that got an earlier event."""
    if notice.event not in events:
        return False
    others = [event for event in events if event != ENDED]
    return notice.event != ENDED or not others or any(event in notice.reported for event in others)


def is_of_entity(user: str, client_id: str, ip: str, row: UsageRow, group: str = "") -> bool:
    """True if the row belongs to an entity of the config; "" for a part that the entity does not have.

    A name matches the bucket's name. `<default>` matches a bucket whose quota is a default's.
    """
    parts = (
        ("user", user, row.user), ("client-id", client_id, row.client_id), ("ip", ip, row.ip), ("group", group, row.group),
    )  # fmt: skip
    levels = row.level.split(", ")
    return all(not name or name == own or (name == "<default>" and f"{kind}=<default>" in levels) for kind, name, own in parts)
