"""Episodes of entities near or over their quotas: each event of an episode is reported once."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from gateway.quotas.entity import OTHER
from gateway.quotas.snapshot import UsageRow
from gateway.steps import Steps, at_once

NEAR: Final = "near_quota"
THROTTLED: Final = "throttled"
ENDED: Final = "ended"
EVENTS: Final = (NEAR, THROTTLED, ENDED)

MAX_EPISODES: Final = 10_000

BucketName = tuple[str, str, str, str, str, str]
"""Kind, user, client-id, address, group and broker, as in metrics."""


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

    __slots__ = ("began", "busy_at", "peak_ratio", "reported", "row", "throttled_before")

    def __init__(self, row: UsageRow, throttled_before: int, now: float) -> None:
        self.began = self.busy_at = now
        self.row = row
        self.throttled_before = throttled_before
        self.peak_ratio = 0.0
        self.reported: tuple[str, ...] = ()

    def notice(self, event: str, now: float) -> Notice:
        found = Notice(
            event,
            self.row,
            now - self.began,
            max(0, self.row.throttled_total - self.throttled_before),
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
        self._throttled: dict[BucketName, int] = {}  # the totals at the last look

    def __len__(self) -> int:
        return len(self._episodes)

    def observe(self, rows: Iterable[UsageRow], now: float) -> list[Notice]:
        """The events since the last call. An entity without a row counts as idle."""
        return at_once(self.observe_in_steps(rows, now))

    def observe_in_steps(self, rows: Iterable[UsageRow], now: float) -> Steps[list[Notice]]:
        """As `observe`. The steps of one call end before those of the next begin."""
        notices: list[Notice] = []
        totals: dict[BucketName, int] = {}
        for number, row in enumerate(rows, 1):
            if number % _ROWS == 0:
                yield
            if row.limit is None or OTHER in (row.user, row.client_id):
                continue
            name = (row.kind, row.user, row.client_id, row.ip, row.group, row.broker)
            # Of an entity that was idle at the last look, only throttles of the last minute count, as one.
            lately = row.throttled_seconds is not None
            before = self._throttled.get(name, row.throttled_total - lately)
            totals[name] = row.throttled_total
            grew = row.throttled_total > before and lately
            throttled = grew or row.throttle_left > 0.0
            if throttled or row.used_ratio >= self.near_ratio:
                notices += self._busy(name, row, before, now, throttled=throttled)
        self._throttled = totals
        for name, episode in list(self._episodes.items()):
            if now - episode.busy_at >= self.quiet_seconds:
                notices.append(episode.notice(ENDED, now))
                del self._episodes[name]
        return notices

    def _busy(self, name: BucketName, row: UsageRow, before: int, now: float, *, throttled: bool) -> list[Notice]:
        episode = self._episodes.get(name)
        if episode is None:
            if len(self._episodes) >= self._max_episodes:
                self.left_out += 1
                return []
            episode = self._episodes[name] = Episode(row, min(before, row.throttled_total), now)
        episode.busy_at = now
        episode.row = row
        episode.peak_ratio = max(episode.peak_ratio, row.used_ratio)
        if throttled:
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
