"""Episodes as tables: the used ratio at each second, and the events."""

import pytest

from gateway.features.notify.rules import ENDED, NEAR, THROTTLED, EpisodeTable, is_of_entity, is_wanted
from gateway.quotas.entity import OTHER
from gateway.quotas.snapshot import UsageRow
from tests.gateway.features.notify.rows import throttled, used

QUIET = 10.0


def events(*looks: tuple[float, UsageRow | None], table: EpisodeTable | None = None) -> list[tuple[float, str]]:
    """(time, event) for looks of (time, row of alice or None)."""
    table = table or EpisodeTable(0.8, QUIET)
    return [(at, notice.event) for at, row in looks for notice in table.observe([] if row is None else [row], at)]


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([(0, used(0.79)), (2, used(0.5))], []),
        ([(0, used(0.8)), (2, used(0.9)), (4, used(0.99))], [(0, NEAR)]),
        ([(0, used(0.85)), (2, throttled(1)), (4, throttled(2))], [(0, NEAR), (2, THROTTLED)]),
        ([(0, throttled(1)), (2, used(0.9)), (4, throttled(2))], [(0, THROTTLED)]),
        ([(0, used(0.85)), (2, used(0.1)), (11, used(0.85)), (20, used(0.1))], [(0, NEAR)]),
        ([(0, used(0.85)), (9, used(0.1)), (10, used(0.1))], [(0, NEAR), (10, ENDED)]),
        ([(0, throttled(1)), (10, None)], [(0, THROTTLED), (10, ENDED)]),
        ([(0, throttled(1)), (10, None), (11, throttled(2))], [(0, THROTTLED), (10, ENDED), (11, THROTTLED)]),
    ],
    ids=[
        "below the threshold",
        "near once",
        "near then throttled",
        "throttled at once is not near",
        "return within the quiet time is the same episode",
        "quiet time ends it",
        "idle entity ends",
        "next episode is reported again",
    ],
)
def test_events_of_an_episode(looks: list[tuple[float, UsageRow | None]], expected: list[tuple[float, str]]) -> None:
    assert events(*looks) == expected


def test_short_throttle_between_two_looks_is_seen() -> None:
    between = used(0.6, throttled_total=5, throttled_seconds=1.0)
    assert events((0, used(0.6, throttled_total=4)), (2, between), (4, between)) == [(2, THROTTLED)]


def test_throttles_of_an_earlier_time_begin_no_episode() -> None:
    assert events((0, used(0.1, throttled_total=7))) == []


def test_end_has_figures_of_the_whole_episode() -> None:
    table = EpisodeTable(0.8, QUIET)
    table.observe([used(0.9, throttled_total=3)], 0.0)
    table.observe([throttled(8)], 5.0)
    (end,) = table.observe([used(0.1, throttled_total=8)], 15.0)
    assert (end.event, end.seconds, end.throttled_requests, end.peak_ratio) == (ENDED, 15.0, 5, 1.2)
    assert end.reported == (NEAR, THROTTLED)
    assert len(table) == 0


def test_each_kind_and_entity_has_its_own_episode() -> None:
    table = EpisodeTable(0.8, QUIET)
    rows = [used(0.9), used(0.9, kind="fetch"), used(0.9, user="bob")]
    assert [notice.event for notice in table.observe(rows, 0.0)] == [NEAR] * 3
    assert table.observe(rows, 1.0) == []


def test_unnamed_and_unlimited_entities_have_no_episode() -> None:
    table = EpisodeTable(0.8, QUIET)
    assert table.observe([used(0.9, user=OTHER), used(0.9, limit=None)], 0.0) == []


def test_episodes_are_bounded() -> None:
    table = EpisodeTable(0.8, QUIET, max_episodes=2)
    rows = [used(0.9, user=name) for name in "abc"]
    assert len(table.observe(rows, 0.0)) == len(table) == 2
    assert table.left_out == 1
    assert [notice.event for notice in table.observe([], QUIET)] == [ENDED, ENDED]


@pytest.mark.parametrize(
    ("events_of_target", "expected"),
    [
        ((NEAR, THROTTLED, ENDED), [NEAR, ENDED]),
        ((THROTTLED, ENDED), []),
        ((NEAR,), [NEAR]),
        ((ENDED,), [ENDED]),
    ],
)
def test_end_goes_to_targets_that_know_of_the_episode(events_of_target: tuple[str, ...], expected: list[str]) -> None:
    table = EpisodeTable(0.8, QUIET)
    notices = [*table.observe([used(0.9)], 0.0), *table.observe([], QUIET)]
    assert [notice.event for notice in notices if is_wanted(events_of_target, notice)] == expected


@pytest.mark.parametrize(
    ("entity", "row", "matches"),
    [
        (("alice", "", ""), used(0), True),
        (("alice", "etl", ""), used(0), False),
        (("alice", "etl", ""), used(0, client_id="etl"), True),
        (("bob", "", ""), used(0), False),
        (("<default>", "", ""), used(0), False),
        (("<default>", "", ""), used(0, level="user=<default>"), True),
        (("<default>", "etl", ""), used(0, level="user=<default>, client-id=etl", client_id="etl"), True),
        (("", "", "10.0.0.1"), used(0, user="", ip="10.0.0.1", level="ip=<default>"), True),
        (("", "", "<default>"), used(0, user="", ip="10.0.0.1", level="ip=<default>"), True),
    ],
)
def test_entities_match_by_name_or_by_default_quota(entity: tuple[str, str, str], row: UsageRow, matches: bool) -> None:
    assert is_of_entity(*entity, row) is matches


def test_each_broker_has_its_own_episode() -> None:
    notices = EpisodeTable(0.8, QUIET).observe([used(0.9, broker=broker) for broker in ("1", "2")], 0.0)
    assert [(notice.event, notice.row.broker) for notice in notices] == [(NEAR, "1"), (NEAR, "2")]


def test_groups_have_episodes_of_their_own() -> None:
    rows = [used(0.9, user="", group=group, level=f"group={group}") for group in ("jobs", "others")]
    notices = EpisodeTable(0.8, QUIET).observe(rows, 0.0)
    assert [(notice.event, notice.row.group) for notice in notices] == [(NEAR, "jobs"), (NEAR, "others")]
    assert [is_of_entity("", "", "", row, "jobs") for row in (*rows, used(0))] == [True, False, False]
