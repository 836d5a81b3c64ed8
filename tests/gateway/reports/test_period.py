"""Periods given as --from and --to, and the hours in them."""

import datetime as dt

import pytest

from gateway.reports.job.ledger import LedgerFile, hour_of
from gateway.reports.job.period import Hour, Period, parsed, shown
from gateway.reports.job.state import DoneHour, batches, missing, pending

DAY = dt.date(2026, 11, 21)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("2026-11-21", (DAY, 0), (DAY, 23)),
        ("2026-11-21T00", (DAY, 0), (DAY, 0)),
        ("2026-11-21T15", (DAY, 15), (DAY, 15)),
        ("2026-11-21T15:00", (DAY, 15), (DAY, 15)),
    ],
)
def test_times_are_parsed(text: str, first: Hour, last: Hour) -> None:
    assert (parsed(text, 0), parsed(text, 23)) == (first, last)


@pytest.mark.parametrize(
    ("folder", "hour"),
    [
        ("date=2026-11-21/hour=00", (DAY, 0)),
        ("date=2026-11-21/hour=7", (DAY, 7)),
        ("date=2026-11-21/hour=23", (DAY, 23)),
        ("date=2026-11-21/hour=24", None),
        ("date=2026-11-31/hour=00", None),
        ("date=2026-11-21", None),
    ],
)
def test_hour_of_a_file_is_that_of_its_folder(folder: str, hour: Hour | None) -> None:
    assert hour_of(f"/ledger/{folder}/weir-1.jsonl.gz") == hour


def test_period_includes_both_ends() -> None:
    before, first, last, after = (dt.date(2026, 11, 20), 23), (DAY, 0), (DAY, 3), (DAY, 4)
    assert [Period(first, last).includes(hour) for hour in (before, first, last, after)] == [False, True, True, False]
    assert [Period(first, None).includes(hour) for hour in (before, after)] == [False, True]
    assert [Period(None, last).includes(hour) for hour in (before, after)] == [True, False]


def test_hour_is_shown_with_its_date() -> None:
    assert shown((DAY, 5)) == "2026-11-21 05:00"


def test_new_and_changed_hours_are_pending() -> None:
    old, late, new, gone = ((DAY, hour) for hour in range(4))
    one, two = LedgerFile("one", 1), LedgerFile("two", 2)
    files = {old: frozenset({one}), late: frozenset({one, two}), new: frozenset({one})}
    done = {hour: DoneHour("run", frozenset({one}), 1, 0) for hour in (old, late, gone)}
    assert pending(files, done) == [late, new]
    assert pending({old: frozenset({LedgerFile("one", 2)})}, done) == [old], "a file with another length counts as another file"
    assert pending({late: frozenset()}, done) == [], "the ledger deletes old files, and their finished hours stay"


def test_files_that_are_gone_beside_new_ones_are_missing() -> None:
    whole, late, cut, grown = ((DAY, hour) for hour in range(4))
    one, two, new = (LedgerFile(name, 1) for name in ("one", "two", "new"))
    done = {hour: DoneHour("run", frozenset({one, two}), 1, 0) for hour in (whole, late, grown)}
    done[cut] = DoneHour("run", frozenset({one, two}), 1, 0, frozenset({"two"}))
    files = {whole: {one}, late: {one, new}, cut: {one, new}, grown: {one, LedgerFile("two", 2)}}
    assert missing({hour: frozenset(of_hour) for hour, of_hour in files.items()}, done) == {late: ["two"]}


def test_hours_are_split_into_batches() -> None:
    hours = [(DAY, hour) for hour in range(5)]
    assert batches(hours, 2) == [hours[:2], hours[2:4], hours[4:]]
