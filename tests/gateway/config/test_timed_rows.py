"""`until` and `schedule` of rows: the meaning of the keys, the lines of `weir check`, and the refusal of bad values."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.config.load import kept_config, parse_kept_config
from gateway.config.places import Places
from gateway.config.reload import plan
from gateway.config.timed_rows import past_warnings, timed_lines
from gateway.quotas.schedule import Schedule, When
from tests.gateway.config.test_group_rows import groups
from tests.gateway.config.texts import check_problem, entities, parsed, problems_of

NIGHT = '{days: mon-fri, from: "22:00", to: "06:00", zone: Europe/Berlin}'
NOVEMBER = datetime(2026, 11, 22, 12, tzinfo=UTC)
DECEMBER = datetime(2026, 12, 1, 6, tzinfo=UTC)
ROWS = entities(
    "{user: alice, producer_byte_rate: 1048576}",
    "{user: alice, producer_byte_rate: 8388608, until: 2026-12-01T06:00Z}",
    f"{{user: alice, producer_byte_rate: 4194304, schedule: {NIGHT}}}",
    "{user: bob, exempt: true, until: 2026-11-01T00:00Z}",
)


def timed(keys: str) -> str:
    return entities(f"{{user: a, producer_byte_rate: 1048576, {keys}}}")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-12-01T06:00Z", DECEMBER),
        ("2026-12-01T07:00:00+01:00", DECEMBER),
        ('"2026-12-01T06:00:00Z"', DECEMBER),
        ("2026-12-01 06:00:01Z", DECEMBER.replace(second=1)),
    ],
)
def test_until_is_a_moment(text: str, moment: datetime) -> None:
    (row,) = parsed(timed(f"until: {text}")).quotas.entities
    assert row.when == When(moment)


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("mon-fri", range(5)),
        ("[sat, sun]", (5, 6)),
        ("'fri-mon, wed'", (4, 5, 6, 0, 2)),
        ("SUN", (6,)),
    ],
)
def test_days_are_names_and_ranges(text: str, days: list[int]) -> None:
    (row,) = parsed(timed(f'schedule: {{days: {text}, from: "22:00", to: "06:00", zone: Europe/Berlin}}')).quotas.entities
    assert row.when == When(schedule=Schedule(frozenset(days), 1320, 360, "Europe/Berlin"))


def test_schedule_without_days_is_for_every_day() -> None:
    (group,) = parsed(
        groups('{name: a, match: [{user: b}], request_rate: 100, schedule: {from: "00:00", to: "24:00", zone: UTC}}')
    ).quotas.groups
    assert group.when == group.quota.when == When(schedule=Schedule(frozenset(range(7)), 0, 1440, "UTC"))


@pytest.mark.parametrize(
    ("keys", "key", "words"),
    [
        ("until: tomorrow", "until", ("not a time", '"tomorrow"', "line 5", "2027-12-01T06:00Z")),
        ("until: 2026-12-01T06:00", "until", ("has no zone", "line 5", "2027-12-01T06:00Z")),
        ("until: 2026-12-01", "until", ("has no zone", "2027-12-01T06:00Z")),
        ("until: 7", "until", ("not a time",)),
        ('until: "9999-12-31T23:59-12:00"', "until", ("not a time",)),
        ("until: ", "until", ("is empty", "remove the key")),
        ("schedule: ", "schedule", ("is empty", "remove the key")),
        ('schedule: {to: "06:00", zone: UTC}', "schedule.from", ("is missing", "line 5")),
        ('schedule: {days: mon-fry, from: "22:00", to: "06:00", zone: UTC}', "schedule.days", ("'mon-fry'", "mon-fri")),
        ('schedule: {days: [1], from: "22:00", to: "06:00", zone: UTC}', "schedule.days", ("which is not a day", "mon-fri")),
        ('schedule: {days: [], from: "22:00", to: "06:00", zone: UTC}', "schedule.days", ("names no day",)),
        ('schedule: {from: 22:00, to: "06:00", zone: UTC}', "schedule.from", ("1320", 'in quotes: "22:00"')),
        ('schedule: {from: "6:00", to: "06:00", zone: UTC}', "schedule.from", ("not a time of the day", '"06:00"')),
        ('schedule: {from: "06:00", to: "24:01", zone: UTC}', "schedule.to", ("not a time of the day",)),
        ('schedule: {from: "06:00", to: "06:00", zone: UTC}', "schedule", ("same from and to", '"24:00"', "line 5")),
        ('schedule: {from: "24:00", to: "06:00", zone: UTC}', "schedule", ("begins at 24:00", '"00:00"')),
        ('schedule: {from: "22:00", to: "06:00", zone: Europe/Berln}', "schedule.zone", ("Berln", "write Europe/Berlin")),
        ('schedule: {from: "22:00", to: "06:00", zone: Europe}', "schedule.zone", ("not a time zone",)),
        ('schedule: {from: "22:00", to: "06:00", zone: localtime}', "schedule.zone", ("not a time zone",)),
        ('schedule: {from: "22:00", to: "06:00", zone: ../etc}', "schedule.zone", ("not a time zone",)),
    ],
)  # fmt: skip
def test_bad_value_is_refused(keys: str, key: str, words: tuple[str, ...]) -> None:
    check_problem(timed(keys), f"quotas.entities[0].{key}", *words)


def test_two_plain_rows_are_refused() -> None:
    row = "{user: a, producer_byte_rate: 1048576}"
    words = ("same entity as quotas.entities[0]: user=a", "line 6", "until or another schedule")
    check_problem(entities(row, row), "quotas.entities[1]", *words)
    group = "{name: a, match: [{user: %s}], request_rate: 100}"
    check_problem(
        groups(group % "b", group % "c"), "quotas.groups[1].name", "quotas.groups[0] too", "until or another schedule"
    )


def test_two_rows_for_the_same_time_are_refused() -> None:
    row = "{user: a, producer_byte_rate: 1048576, until: 2026-12-01T06:00Z}"
    other = "{user: a, producer_byte_rate: 2097152, until: 2026-12-01T07:00+01:00}"
    check_problem(entities(row, other), "quotas.entities[1]", "counts at the same time: until 2026-12-01T06:00Z")


def test_temporary_group_hides_no_rule() -> None:
    narrow, wide = "{name: %s, match: [{user: a-b}], request_rate: 9%s}", "{name: %s, match: [{user: a-*}], request_rate: 5%s}"
    until = ", until: 2026-12-01T06:00Z"
    parsed(groups(wide % ("w", until), narrow % ("n", "")))
    parsed(groups(wide % ("w", ""), wide % ("w", until)))
    (problem,) = problems_of(groups(wide % ("w", ""), narrow % ("n", until)))
    assert "can never match" in problem.message


def test_times_survive_the_way_to_a_worker() -> None:
    config = parsed(ROWS)
    kept = parse_kept_config(kept_config(config), source="weir.yaml", directory=Path())
    assert kept.quotas.entities == config.quotas.entities
    assert [row.line for row in kept.quotas.entities] == [5, 6, 7, 8]


def test_section_at_a_moment_has_the_rows_that_count() -> None:
    quotas = parsed(ROWS).quotas
    effective, change = quotas.at(NOVEMBER)
    assert [row.line for row in effective.entities] == [6]
    assert change == datetime(2026, 11, 23, 21, tzinfo=UTC)  # Monday's window begins, although another row counts
    effective, change = quotas.at(DECEMBER)
    assert [row.line for row in effective.entities] == [5]


def test_lasting_rows_have_no_time() -> None:
    assert [row.line for row in parsed(ROWS).quotas.lasting().entities] == [5]


def test_check_says_which_rows_count() -> None:
    assert list(timed_lines(parsed(ROWS).quotas.row_lists, NOVEMBER)) == [
        "quotas.entities[1] (user=alice, line 6): counts now until 2026-12-01T06:00Z",
        "quotas.entities[2] (user=alice, line 7): does not count now; its time begins at 2026-11-23T21:00Z",
        "quotas.entities[3] (user=bob, line 8): does not count any more",
    ]
    (_, second, _) = timed_lines(parsed(ROWS).quotas.row_lists, datetime(2026, 11, 23, 22, tzinfo=UTC))
    assert second.endswith("does not count now, because an earlier row counts")


def test_equal_row_does_not_count_beside_the_first() -> None:
    row = parsed(ROWS).quotas.entities[1]
    first, second = timed_lines([("rows", [row, replace(row)])], NOVEMBER)
    assert first.endswith("counts now until 2026-12-01T06:00Z")
    assert second.endswith("does not count now, because an earlier row counts")


def test_until_in_the_past_gets_a_warning() -> None:
    (warning,) = past_warnings(parsed(ROWS).quotas.row_lists, NOVEMBER)
    assert warning.startswith("quotas.entities[3].until: 2026-11-01T00:00Z is in the past, so the row of user=bob")


def test_reload_names_the_row_that_changed() -> None:
    changed = plan(parsed(ROWS), parsed(ROWS.replace("8388608", "9437184"))).changes
    change = "(producer_byte_rate 8388608 -> producer_byte_rate 9437184)"
    assert changed == (f"quotas.entities: changed user=alice (until 2026-12-01T06:00Z) {change}",)


def test_place_of_a_temporary_limit_has_its_end() -> None:
    config = parsed(ROWS)
    places = Places(config, "weir.yaml", at=NOVEMBER)
    assert places.of_entity("user=alice", "file") == "weir.yaml:6, until 2026-12-01T06:00Z"
    assert Places(config, "weir.yaml", at=DECEMBER).of_entity("user=alice", "file") == "weir.yaml:5"
    assert places.hold(config, NOVEMBER)
    assert not places.hold(config, DECEMBER)
    assert not places.hold(config, NOVEMBER.replace(day=1))
