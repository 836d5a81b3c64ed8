"""Rows of the config that count for a time: until a moment, or in weekly windows of local time. Callers pass the time in UTC.

A local time is the first moment at which the zone's clock shows it or a later time. So a time that a change to daylight saving
skips is the moment of the change. A doubled time is the first of the two.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, Protocol, TypeVar
from zoneinfo import ZoneInfo

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_DAYS_BACK: Final = 2
_DAYS_AHEAD: Final = 16
"""A weekly window in the hour that a change to daylight saving skips is empty. So two weeks have to be looked at."""

RowState = tuple[bool, datetime | None]
"""(True if a row counts, the earliest moment at which that may change; None: never)"""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A window on each of `days` (0: Monday), from `start` to `end` in minutes after midnight in `zone`.

    The window of a day ends on the next day if `end` is not above `start`. `end` may be 1440; `start` and `end` differ.
    """

    days: frozenset[int]
    start: int
    end: int
    zone: str

    def __str__(self) -> str:
        return f"{days_text(self.days)} {clock_text(self.start)}-{clock_text(self.end)} {self.zone}"

    def state(self, at: datetime) -> RowState:
        """True within a window. Windows without a pause between them are one."""
        end: datetime | None = None
        for first, last in self._windows(at):
            if last <= at:
                continue
            if end is None and first > at:
                return False, first
            if end is not None and first > end:
                return True, end
            end = last
        return end is not None, None

    def _windows(self, at: datetime) -> Iterator[tuple[datetime, datetime]]:
        """The windows around `at` in their order: they do not overlap, and none is empty."""
        zone = ZoneInfo(self.zone)
        today = at.astimezone(zone).date()
        for distance in range(-_DAYS_BACK, _DAYS_AHEAD):
            day = today + timedelta(days=distance)
            if day.weekday() in self.days:
                first = _moment(day, self.start, zone)
                last = _moment(day, self.end if self.end > self.start else self.end + 24 * 60, zone)
                if first < last:
                    yield first, last


@dataclass(frozen=True, slots=True)
class When:
    """The time in which a row counts: before `until`, and within `schedule`. At least one of the two is given."""

    until: datetime | None = None
    schedule: Schedule | None = None

    def __str__(self) -> str:
        until = () if self.until is None else (f"until {moment_text(self.until)}",)
        return ", ".join((*until, *(() if self.schedule is None else (str(self.schedule),))))

    def keys(self) -> dict[str, object]:
        """The keys of the file."""
        until: dict[str, object] = {} if self.until is None else {"until": moment_text(self.until)}
        if self.schedule is None:
            return until
        window = {
            "days": days_text(self.schedule.days),
            "from": clock_text(self.schedule.start),
            "to": clock_text(self.schedule.end),
            "zone": self.schedule.zone,
        }
        return until | {"schedule": window}

    def state(self, at: datetime) -> RowState:
        if self.until is not None and at >= self.until:
            return False, None
        if self.schedule is None:
            return True, self.until
        counts, change = self.schedule.state(at)
        if self.until is None:
            return counts, change
        return counts, self.until if change is None else min(change, self.until)


class TimedRow(Protocol):
    """A row of the config. Of the rows with one `identity`, at most one counts at a time. `when` None: it always may."""

    @property
    def when(self) -> When | None: ...

    @property
    def identity(self) -> Hashable: ...


RowT = TypeVar("RowT", bound=TimedRow)


def lasting(rows: Iterable[RowT]) -> tuple[RowT, ...]:
    """The rows without those that count for a time."""
    return tuple(row for row in rows if row.when is None)


def rows_at(rows: Sequence[RowT], at: datetime) -> tuple[tuple[RowT, ...], datetime | None]:
    """The rows that count at a time, in their order, and the moment until which no other rows count. None: for ever.

    Of the rows with one identity, the first one within its time counts, else the one without a time.
    """
    states: dict[When, RowState] = {}
    chosen: dict[Hashable, int] = {}
    for index, row in enumerate(rows):
        when, before = row.when, chosen.get(row.identity)
        if when is None:
            chosen.setdefault(row.identity, index)
            continue
        if when not in states:
            states[when] = when.state(at)
        if states[when][0] and (before is None or rows[before].when is None):
            chosen[row.identity] = index
    changes = [change for _, change in states.values() if change is not None]
    return tuple([rows[index] for index in sorted(chosen.values())]), min(changes, default=None)


def _moment(day: date, minutes: int, zone: ZoneInfo) -> datetime:
    """The first moment (UTC) at which the zone's clock shows so many minutes after the day's midnight, or a later time."""
    local = datetime(day.year, day.month, day.day) + timedelta(minutes=minutes)  # noqa: DTZ001 - a local time
    found = local.replace(tzinfo=zone).astimezone(UTC)
    if _local(found, zone) == local:
        return found
    # The zone's clock skips this time. Between these two moments it jumps over it.
    earliest = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    seconds = range(int((found - earliest).total_seconds()))
    return earliest + timedelta(
        seconds=bisect_left(seconds, True, key=lambda second: _local(earliest + timedelta(seconds=second), zone) >= local)
    )


def _local(at: datetime, zone: ZoneInfo) -> datetime:
    return at.astimezone(zone).replace(tzinfo=None)


def moment_text(at: datetime) -> str:
    """`2026-12-01T06:00Z`, with seconds where there are some."""
    text = at.astimezone(UTC).isoformat().removesuffix("+00:00")
    return f"{text.removesuffix(':00')}Z"


def clock_text(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def days_text(days: frozenset[int]) -> str:
    """`mon-fri` for days in a row, `mon,wed` for others."""
    found = sorted(days)
    if len(found) > 2 and found[-1] - found[0] == len(found) - 1:
        return f"{DAYS[found[0]]}-{DAYS[found[-1]]}"
    return ",".join([DAYS[day] for day in found])
