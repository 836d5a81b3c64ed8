"""Episodes as tables: the used ratio at each second, and the events."""

from collections.abc import Sequence

import pytest

from gateway.features.notify.rules import (
    ENDED,
    NEAR,
    THROTTLED,
    EpisodeTable,
    Notice,
    ProcessRows,
    is_of_entity,
    is_wanted,
)
from gateway.quotas.entity import OTHER
from gateway.quotas.snapshot import UsageRow
from gateway.steps import at_once
from tests.gateway.features.notify.rows import throttled, used

QUIET = 10.0


def observed(table: EpisodeTable, rows: Sequence[UsageRow], now: float) -> list[Notice]:
    """The events of a look at a gateway with one process."""
    return at_once(table.observe({0: rows}, now))


def events(*looks: tuple[float, UsageRow | None], table: EpisodeTable | None = None) -> list[tuple[float, str]]:
    """(time, event) for looks of (time, row of alice or None)."""
    table = table or EpisodeTable(0.8, QUIET)
    return [(at, notice.event) for at, row in looks for notice in observed(table, [] if row is None else [row], at)]


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


def test_debt_without_throttled_requests_is_no_throttle() -> None:
    """A group above others gets the debts of their use, and has no requests of its own."""
    indebted = used(1.2, throttle_left=0.5, group="cluster", user="")
    assert events((0, indebted), (2, indebted)) == [(0, NEAR)]


def test_wait_of_a_throttled_client_goes_on_with_its_episode() -> None:
    waiting = used(0.1, throttled_total=1, throttle_left=60.0)
    assert events((0, throttled(1)), (10, waiting), (19, waiting)) == [(0, THROTTLED)]


def test_throttles_of_an_earlier_time_begin_no_episode() -> None:
    assert events((0, used(0.1, throttled_total=7))) == []


def test_end_has_figures_of_the_whole_episode() -> None:
    table = EpisodeTable(0.8, QUIET)
    observed(table, [used(0.9, throttled_total=3)], 100.0)
    observed(table, [throttled(8)], 105.0)
    (end,) = observed(table, [used(0.1, throttled_total=8)], 115.0)
    assert (end.event, end.seconds, end.throttled_requests, end.peak_ratio) == (ENDED, 15.0, 5, 1.2)
    assert (end.reported, end.quiet_seconds) == ((NEAR, THROTTLED), 10.0)
    assert len(table) == 0


def test_each_kind_and_entity_has_its_own_episode() -> None:
    table = EpisodeTable(0.8, QUIET)
    rows = [used(0.9), used(0.9, kind="fetch"), used(0.9, user="bob")]
    assert [notice.event for notice in observed(table, rows, 0.0)] == [NEAR] * 3
    assert observed(table, rows, 1.0) == []


def test_unnamed_and_unlimited_entities_have_no_episode() -> None:
    table = EpisodeTable(0.8, QUIET)
    assert observed(table, [used(0.9, user=OTHER), used(0.9, limit=None)], 0.0) == []


def test_episodes_are_bounded() -> None:
    table = EpisodeTable(0.8, QUIET, max_episodes=2)
    rows = [used(0.9, user=name) for name in "abc"]
    assert len(observed(table, rows, 0.0)) == len(table) == 2
    assert table.left_out == 1
    assert [notice.event for notice in observed(table, [], QUIET)] == [ENDED, ENDED]


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
    notices = [*observed(table, [used(0.9)], 0.0), *observed(table, [], QUIET)]
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
    notices = observed(EpisodeTable(0.8, QUIET), [used(0.9, broker=broker) for broker in ("1", "2")], 0.0)
    assert [(notice.event, notice.row.broker) for notice in notices] == [(NEAR, "1"), (NEAR, "2")]


def test_groups_have_episodes_of_their_own() -> None:
    rows = [used(0.9, user="", group=group, level=f"group={group}") for group in ("jobs", "others")]
    notices = observed(EpisodeTable(0.8, QUIET), rows, 0.0)
    assert [(notice.event, notice.row.group) for notice in notices] == [(NEAR, "jobs"), (NEAR, "others")]
    assert [is_of_entity("", "", "", row, "jobs") for row in (*rows, used(0))] == [True, False, False]


def ended(*looks: tuple[float, ProcessRows]) -> Notice:
    """The end of alice's only episode, `QUIET` seconds after looks at several workers."""
    table = EpisodeTable(0.8, QUIET)
    notices = [notice for at, processes in looks for notice in at_once(table.observe(processes, at))]
    assert [notice.event for notice in notices] == [THROTTLED]
    at, processes = looks[-1]
    (end,) = at_once(table.observe({process: [] for process in processes}, at + QUIET))
    return end


def test_dead_worker_takes_no_counts_from_an_episode() -> None:
    end = ended((0, {1: [throttled(100)], 2: [throttled(5)]}), (2, {2: [throttled(6)]}))
    assert end.throttled_requests == 106


def test_replaced_worker_counts_from_zero() -> None:
    end = ended((0, {1: [throttled(100)]}), (2, {}), (4, {2: [throttled(30)]}), (6, {2: [throttled(31)]}))
    assert end.throttled_requests == 131


def test_throttles_of_a_bucket_that_was_idle_count_as_one() -> None:
    """Its row has the throttles of all times, and only the last one is known to be recent."""
    assert ended((0, {1: []}), (2, {1: [throttled(5)]})).throttled_requests == 1


def test_answer_of_a_silent_worker_is_no_new_throttle() -> None:
    """The sum of all workers' totals falls and rises again, and no request was throttled since."""
    table = EpisodeTable(0.8, QUIET)
    quiet = [used(0.1, throttled_total=100, throttled_seconds=50.0)]
    looks: list[tuple[float, ProcessRows]] = [
        (0, {1: [throttled(100)], 2: [used(0.1)]}),
        (QUIET, {1: quiet, 2: [used(0.1)]}),
        (QUIET + 2, {1: None, 2: [used(0.1)]}),
        (QUIET + 4, {1: quiet, 2: [used(0.1)]}),
    ]
    found = [notice.event for at, processes in looks for notice in at_once(table.observe(processes, at))]
    assert found == [THROTTLED, ENDED]


def test_throttles_of_a_silent_time_count_later() -> None:
    end = ended((0, {1: [throttled(10)], 2: []}), (5, {1: None, 2: []}), (7, {1: [throttled(25)], 2: []}))
    assert end.throttled_requests == 25


def test_silence_is_no_quiet_time() -> None:
    """The supervisor waits for a minute before it kills a silent worker. Its clients are still there."""
    table = EpisodeTable(0.8, QUIET)
    looks: list[ProcessRows] = [{1: [throttled(10)]}, {1: None}, {1: None}, {1: [throttled(12)]}]
    found = [notice.event for at, rows in enumerate(looks) for notice in at_once(table.observe(rows, at * QUIET))]
    assert found == [THROTTLED]


def test_episode_ends_after_the_death_of_a_silent_worker() -> None:
    table = EpisodeTable(0.8, QUIET)
    looks: list[ProcessRows] = [{1: [throttled(10)]}, {1: None}, {}, {}]
    found = [(at, notice.event) for at, rows in enumerate(looks) for notice in at_once(table.observe(rows, at * QUIET))]
    assert found == [(0, THROTTLED), (2, ENDED)]


def test_idle_time_within_an_episode_loses_no_counts() -> None:
    """A bucket without a throttle for a minute has no row. Another worker's row must not hide its total."""
    near = [used(0.9)]
    looks: list[tuple[float, ProcessRows]] = [(0, {1: [throttled(10)], 2: near}), (5, {1: [], 2: near})]
    assert ended(*looks, (9, {1: [throttled(40)], 2: near})).throttled_requests == 40


def test_counter_that_begins_again_takes_no_counts() -> None:
    """A bucket that loses its label shows its totals from 0 on when it has a label again."""
    assert ended((0, {1: [throttled(10)]}), (2, {1: [throttled(3)]})).throttled_requests == 13


def test_ends_of_many_episodes_are_several_steps() -> None:
    table = EpisodeTable(0.8, QUIET)
    at_once(table.observe({0: [used(0.9, user=f"user-{number}") for number in range(1_000)]}, 0.0))
    assert sum(1 for _ in table.observe({0: []}, QUIET)) >= 30
