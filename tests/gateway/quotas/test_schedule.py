"""Rows that count for a time: windows over midnight, changes to and from daylight saving, and the exact next change."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.schedule import Schedule, When, rows_at

ALICE, BOB = ClientQuotaEntity("alice"), ClientQuotaEntity("bob")
BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
EVERY_DAY, WEEKDAYS = frozenset(range(7)), frozenset(range(5))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def minutes(text: str) -> int:
    return int(text[:2]) * 60 + int(text[3:])


def schedule(start: str, end: str, zone: str, days: frozenset[int] = EVERY_DAY) -> Schedule:
    return Schedule(days, minutes(start), minutes(end), zone)


NIGHT, US_NIGHT = ("22:00", "06:00", BERLIN), ("22:00", "06:00", NEW_YORK)


@pytest.mark.parametrize(
    ("window", "moment", "state", "change"),
    [
        # Over midnight, in summer (UTC+2) and in winter (UTC+1).
        (NIGHT, "2026-07-01T19:59:59Z", False, "2026-07-01T20:00Z"),
        (NIGHT, "2026-07-01T20:00Z", True, "2026-07-02T04:00Z"),
        (NIGHT, "2026-07-02T03:59:59Z", True, "2026-07-02T04:00Z"),
        (NIGHT, "2026-07-02T04:00Z", False, "2026-07-02T20:00Z"),
        (NIGHT, "2026-12-01T21:00Z", True, "2026-12-02T05:00Z"),
        # The night in which a zone loses or gains an hour.
        (NIGHT, "2026-03-28T21:00Z", True, "2026-03-29T04:00Z"),
        (NIGHT, "2026-10-24T20:00Z", True, "2026-10-25T05:00Z"),
        (US_NIGHT, "2026-03-08T03:00Z", True, "2026-03-08T10:00Z"),
        (US_NIGHT, "2026-11-01T02:00Z", True, "2026-11-01T11:00Z"),
        # 02:30 does not exist: the moment of the change stands for it.
        (("02:30", "06:00", BERLIN), "2026-03-29T00:59:59Z", False, "2026-03-29T01:00Z"),
        (("02:30", "06:00", BERLIN), "2026-03-29T01:00Z", True, "2026-03-29T04:00Z"),
        (("22:00", "02:30", BERLIN), "2026-03-28T22:00Z", True, "2026-03-29T01:00Z"),
        (("02:30", "06:00", NEW_YORK), "2026-03-08T06:59Z", False, "2026-03-08T07:00Z"),
        # A window within the hour that is skipped is empty on that day.
        (("02:10", "02:50", BERLIN), "2026-03-28T12:00Z", False, "2026-03-30T00:10Z"),
        # 02:30 comes twice: the first one counts, as an end and as a beginning.
        (("22:00", "02:30", BERLIN), "2026-10-25T00:29:59Z", True, "2026-10-25T00:30Z"),
        (("22:00", "02:30", BERLIN), "2026-10-25T00:30Z", False, "2026-10-25T21:00Z"),
        (("02:30", "06:00", BERLIN), "2026-10-25T00:30Z", True, "2026-10-25T05:00Z"),
        (("01:30", "06:00", NEW_YORK), "2026-11-01T05:30Z", True, "2026-11-01T11:00Z"),
        (("23:00", "01:30", NEW_YORK), "2026-11-01T05:30Z", False, "2026-11-02T04:00Z"),
        # A zone that skipped a whole day.
        (("00:00", "12:00", "Pacific/Apia"), "2011-12-30T09:00Z", False, "2011-12-30T10:00Z"),
    ],
)
def test_window(window: tuple[str, str, str], moment: str, state: bool, change: str) -> None:
    assert schedule(*window).state(at(moment)) == (state, at(change))


@pytest.mark.parametrize(
    ("days", "window", "moment", "state", "change"),
    [
        # A window belongs to the day on which it begins: Friday's night ends on Saturday, and Sunday has none.
        (WEEKDAYS, NIGHT, "2026-11-27T22:00Z", True, "2026-11-28T05:00Z"),
        (WEEKDAYS, NIGHT, "2026-11-28T05:00Z", False, "2026-11-30T21:00Z"),
        (WEEKDAYS, NIGHT, "2026-11-29T23:00Z", False, "2026-11-30T21:00Z"),
        # Whole days are one window without a change at midnight.
        (WEEKDAYS, ("00:00", "24:00", BERLIN), "2026-11-24T12:00Z", True, "2026-11-27T23:00Z"),
        (frozenset({5, 6}), ("00:00", "24:00", BERLIN), "2026-03-28T12:00Z", True, "2026-03-29T22:00Z"),
        (frozenset({6}), ("02:10", "02:50", BERLIN), "2026-03-27T12:00Z", False, "2026-04-05T00:10Z"),
    ],
)
def test_days(days: frozenset[int], window: tuple[str, str, str], moment: str, state: bool, change: str) -> None:
    assert schedule(*window, days).state(at(moment)) == (state, at(change))


def test_whole_days_of_every_week_never_change() -> None:
    assert schedule("00:00", "24:00", BERLIN).state(at("2026-03-28T12:00Z")) == (True, None)


def row(limit: float, when: When | None = None, entity: ClientQuotaEntity = ALICE) -> EntityQuota:
    return EntityQuota(entity, {"producer_byte_rate": limit}, when=when)


UNTIL_JUNE, UNTIL_MAY = When(at("2026-06-01T00:00Z")), When(at("2026-05-01T00:00Z"))


@pytest.mark.parametrize(
    ("moment", "limits", "change"),
    [
        ("2026-04-30T23:59:59Z", [4.0, 9.0], "2026-05-01T00:00Z"),
        ("2026-05-01T00:00Z", [3.0, 9.0], "2026-06-01T00:00Z"),
        ("2026-06-01T00:00Z", [1.0, 9.0], None),
    ],
)
def test_first_row_in_its_time_precedes_the_plain_row(moment: str, limits: list[float], change: str | None) -> None:
    rows = [row(1.0), row(4.0, UNTIL_MAY), row(9.0, entity=BOB), row(3.0, UNTIL_JUNE)]
    effective, next_change = rows_at(rows, at(moment))
    assert sorted(each.limits["producer_byte_rate"] for each in effective) == limits
    assert next_change == (None if change is None else at(change))
    assert list(effective) == [each for each in rows if each in effective]  # in the file's order


def test_row_without_a_plain_row_ends_as_if_it_were_not_there() -> None:
    assert rows_at([row(1.0, UNTIL_MAY)], at("2026-05-02T00:00Z")) == ((), None)


def test_until_ends_a_schedule() -> None:
    when = When(at("2026-12-01T23:00Z"), schedule(*NIGHT))
    assert when.state(at("2026-12-01T12:00Z")) == (False, at("2026-12-01T21:00Z"))
    assert when.state(at("2026-12-01T21:00Z")) == (True, at("2026-12-01T23:00Z"))
    assert when.state(at("2026-12-01T23:00Z")) == (False, None)


def test_time_is_shown_as_the_file_has_it() -> None:
    when = When(at("2026-12-01T06:00Z"), schedule("22:00", "06:00", BERLIN, WEEKDAYS))
    assert str(when) == "until 2026-12-01T06:00Z, mon-fri 22:00-06:00 Europe/Berlin"


ZONES = (BERLIN, NEW_YORK, "Australia/Lord_Howe", "Asia/Kathmandu", "UTC")
MOMENTS = st.integers(0, 2 * 365 * 86_400).map(lambda seconds: at("2026-01-01T00:00Z") + timedelta(seconds=seconds))
NEAR_CHANGES = st.sampled_from(
    ["2026-03-29T01:00Z", "2026-10-25T01:00Z", "2026-03-08T07:00Z", "2026-11-01T06:00Z", "2026-04-04T15:00Z"]
).flatmap(lambda text: st.integers(-7200, 7200).map(lambda seconds: at(text) + timedelta(seconds=seconds)))
SCHEDULES = st.builds(
    Schedule,
    st.frozensets(st.integers(0, 6), min_size=1),
    st.sampled_from([0, 90, 120, 135, 150, 180, 1320]),
    st.sampled_from([60, 119, 125, 149, 170, 360, 1440]),
    st.sampled_from(ZONES),
)
WHENS = st.builds(When, st.none() | MOMENTS, SCHEDULES) | st.builds(When, MOMENTS, st.none())
ROWS = st.lists(st.builds(row, st.sampled_from([1.0, 2.0]), st.none() | WHENS, st.sampled_from([ALICE, BOB])), max_size=5)


@settings(deadline=None)
@given(ROWS, MOMENTS | NEAR_CHANGES, st.floats(0.0, 1.0, exclude_max=True))
def test_rows_are_the_same_until_the_next_change(rows: list[EntityQuota], moment: datetime, share: float) -> None:
    effective, change = rows_at(rows, moment)
    end = moment + timedelta(days=400) if change is None else change
    assert end > moment
    last = end - timedelta(microseconds=1)
    assert rows_at(rows, min(moment + (end - moment) * share, last))[0] == effective
    assert rows_at(rows, last)[0] == effective


@settings(deadline=None)
@given(SCHEDULES, MOMENTS | NEAR_CHANGES)
def test_window_changes_at_its_next_change_and_at_its_local_time(window: Schedule, moment: datetime) -> None:
    state, change = window.state(moment)
    if change is None:
        return
    assert window.state(change)[0] is not state
    local = change.astimezone(ZoneInfo(window.zone))
    wanted = window.end % 1440 if state else window.start
    skipped = (change - timedelta(seconds=1)).astimezone(local.tzinfo).utcoffset() != local.utcoffset()
    assert skipped or (local.hour * 60 + local.minute, local.second) == (wanted, 0)
