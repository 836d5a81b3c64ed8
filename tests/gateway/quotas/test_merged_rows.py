"""The rows of several processes, merged into one row for each bucket."""

from collections.abc import Iterable
from typing import Any

from gateway.quotas.snapshot import UsageRow, merge_rows
from gateway.steps import at_once


def row(user: str = "alice", **values: Any) -> UsageRow:
    known: dict[str, Any] = {
        "kind": "produce",
        "user": user,
        "client_id": "",
        "ip": "",
        "level": "user=alice",
        "source": "file",
        "limit": 100.0,
        "rate": 30.0,
        "used_ratio": 0.3,
        "tokens": 50.0,
        "amount_total": 1_000,
        "throttled_total": 2,
        "unenforced_total": 0,
        "throttle_seconds_total": 0.5,
        "early_total": 1,
        "early_seconds_total": 0.25,
        "early_seconds_max": 0.25,
        "throttle_left": 0.0,
        "connections": 3,
        "throttled_seconds": None,
        "unthrottled_seconds": None,
        "addresses": (),
    }
    return UsageRow(**{**known, **values})


def merged(answers: Iterable[Iterable[UsageRow]]) -> list[UsageRow]:
    return at_once(merge_rows(answers))


def test_longest_episode_and_all_addresses_are_kept() -> None:
    one, other = row(throttled_seconds=3.0, addresses=("a", "b")), row(throttled_seconds=7.0, addresses=("b", "c"))
    (found,) = merged([[one], [other], [row()]])
    assert (found.throttled_seconds, found.addresses) == (7.0, ("a", "b", "c"))


def test_bucket_of_two_workers_is_merged() -> None:
    other = row(
        rate=80.0, used_ratio=1.1, tokens=-5.0, amount_total=500, throttle_left=0.75, early_seconds_max=0.125, connections=1
    )
    assert merged([[row()], [other]]) == [
        row(
            rate=110.0,
            used_ratio=1.1,
            tokens=-5.0,
            amount_total=1_500,
            throttled_total=4,
            throttle_seconds_total=1.0,
            early_total=2,
            early_seconds_total=0.5,
            throttle_left=0.75,
            connections=4,
        )
    ]


def test_distinct_buckets_stay_unchanged() -> None:
    others = [
        row("bob"),
        row(kind="fetch"),
        row("", group="jobs"),
        row("", group="others"),
        row(broker="1"),
        row(broker="2"),
    ]
    assert merged([[row()], others]) == [row(), *others]


def test_worker_without_the_new_quota_yet_is_merged() -> None:
    (found,) = merged([[row(level="", source="", limit=None, tokens=None, used_ratio=0.0)], [row()]])
    assert (found.limit, found.tokens, found.source, found.level) == (100.0, 50.0, "file", "user=alice")
    assert found.used_ratio == 0.3


def test_missing_limits_stay_none() -> None:
    (found,) = merged([[row(limit=None, tokens=None)], [row(limit=None, tokens=None)]])
    assert (found.limit, found.tokens, found.used_ratio) == (None, None, 0.0)


def test_each_row_is_a_step() -> None:
    assert sum(1 for _ in merge_rows([[row(str(number)) for number in range(50)]] * 2)) == 100


def test_row_with_a_source_names_the_level() -> None:
    unknown, known = row(source="", level=""), row(source="api", level="user=<default>")
    assert [(each.level, each.source) for each in merged([[unknown], [known]])] == [("user=<default>", "api")]
    assert [(each.level, each.source) for each in merged([[row()], [known]])] == [("user=alice", "file")]
    assert [(each.level, each.source) for each in merged([[row()], [unknown]])] == [("user=alice", "file")]
