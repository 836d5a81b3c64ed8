"""The keys `until` and `schedule` of rows that count for a time, and the lines about such rows for the operator."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from zoneinfo import ZoneInfo, available_timezones

from pydantic import PlainValidator, model_validator

from gateway.config.problems import nearest
from gateway.config.section import GIVEN, Section, described, invalid
from gateway.quotas.entity import EntityQuota
from gateway.quotas.schedule import DAYS, Schedule, When, clock_text, moment_text, rows_at

_TIME: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|24:00", re.ASCII)
_OF_THIS_MACHINE: Final = ("localtime", "Factory", "posixrules")
_MIDNIGHT: Final = 24 * 60


def _until(value: object) -> datetime:
    remedy = "write a time with its zone, such as 2027-12-01T06:00Z or 2027-12-01T07:00+01:00"
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        in_utc = found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise invalid("is not a time", remedy) from None
    if found.tzinfo is None:
        raise invalid("has no zone, so it is another moment on each machine", remedy)
    return in_utc


def _days(value: object) -> frozenset[int]:
    remedy = f"write some of {', '.join(DAYS)}, such as mon-fri, or [sat, sun]"
    found: set[int] = set()
    for part in value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else ():
        first, dash, last = part.strip().lower().partition("-") if isinstance(part, str) else ("", "", "")
        last = last if dash else first
        if first not in DAYS or last not in DAYS:
            raise invalid(f"has {part!r}, which is not a day or a range of days", remedy)
        begin = DAYS.index(first)
        found.update((begin + step) % 7 for step in range((DAYS.index(last) - begin) % 7 + 1))
    if not found:
        raise invalid("names no day", remedy)
    return frozenset(found)


def _minutes(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MIDNIGHT:
        raise invalid("is a number, because YAML reads a time like 22:00 as one", f'put it in quotes: "{clock_text(value)}"')
    if not isinstance(value, str) or _TIME.fullmatch(value) is None:
        raise invalid("is not a time of the day", 'write hours and minutes in quotes, such as "06:00" or "22:30"')
    hours, minutes = value.split(":")
    return int(hours) * 60 + int(minutes)


def _zone(value: object) -> str:
    remedy = "write a name of the IANA time zone database, such as Europe/Berlin or UTC"
    if not isinstance(value, str) or value in _OF_THIS_MACHINE:
        raise invalid("is not a time zone", remedy)
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        near = nearest(value, available_timezones())
        raise invalid("is not a time zone", f"write {near}" if near else remedy) from None
    return value


_Minutes = Annotated[Any, PlainValidator(_minutes, json_schema_input_type=str)]


class ScheduleRow(Section):
    """`schedule`: windows of local time in which a row counts."""

    days: Annotated[Any, PlainValidator(_days, json_schema_input_type=str | list[str])] = described(
        "Days on which a window begins: `mon-fri`, `sat,sun`, or a list.", None, absent="every day"
    )
    start: _Minutes = described('Beginning of the window, such as `"22:00"`.', alias="from")
    to: _Minutes = described('End of the window, such as `"06:00"`. An end not after `from` is on the next day.')
    zone: Annotated[Any, PlainValidator(_zone, json_schema_input_type=str)] = described(
        "Time zone of the window, such as `Europe/Berlin`."
    )

    @model_validator(mode="after")
    def _a_window(self) -> "ScheduleRow":
        if self.start == self.to:
            raise invalid(
                f'has the same from and to, "{clock_text(self.start)}", so its window has no length',
                'write from: "00:00" and to: "24:00" for whole days, or another time',
            )
        if self.start == _MIDNIGHT:
            raise invalid("begins at 24:00, the end of a day", 'write from: "00:00" and the next day')
        return self


class TimedKeys(Section):
    """The keys of a row that counts for a time."""

    until: Annotated[Any, PlainValidator(_until, json_schema_input_type=str), GIVEN] = described(
        "Moment at which the row ends, such as `2027-12-01T06:00Z`.", None, absent="no end"
    )
    schedule: Annotated[ScheduleRow | None, GIVEN] = described(
        "Windows of local time in which the row counts.", None, absent="the row counts at any time"
    )

    def when(self) -> When | None:
        if self.until is None and self.schedule is None:
            return None
        row = self.schedule
        days = frozenset(range(7)) if row is None or row.days is None else row.days
        return When(self.until, None if row is None else Schedule(days, row.start, row.to, row.zone))


RowLists = Iterable[tuple[str, Sequence[EntityQuota]]]
"""The lists of rows by their key, such as `quotas.entities`."""


def past_warnings(lists: RowLists, at: datetime) -> Iterator[str]:
    """One line for each row with an `until` that is over."""
    for key, rows in lists:
        for index, row in enumerate(rows):
            if row.when is not None and row.when.until is not None and row.when.until <= at:
                yield (
                    f"{key}[{index}].until: {moment_text(row.when.until)} is in the past, so the row of {row} has no"
                    " effect — remove the row, or write a later time"
                )


def timed_lines(lists: RowLists, at: datetime) -> Iterator[str]:
    """One line for each row that counts for a time: its state now, and the next change."""
    for key, rows in lists:
        effective = {id(row) for row in rows_at(rows, at)[0]}  # to compare thousands of rows with each other takes seconds
        for index, row in enumerate(rows):
            if row.when is not None:
                line = "" if row.line is None else f", line {row.line}"
                yield f"{key}[{index}] ({row}{line}): {_state(row.when, at, effective=id(row) in effective)}"


def _state(when: When, at: datetime, *, effective: bool) -> str:
    counts, change = when.state(at)
    if counts:
        if not effective:
            return "does not count now, because an earlier row counts"
        return "counts now" + ("" if change is None else f" until {moment_text(change)}")
    if change is not None and when.state(change)[0]:
        return f"does not count now; its time begins at {moment_text(change)}"
    return "does not count any more"
