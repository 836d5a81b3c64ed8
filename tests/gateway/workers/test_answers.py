"""The answers of several workers, merged into one."""

from typing import Any

from gateway.workers.answers import (
    merge_config,
    merge_facts,
    merge_histories,
    merge_sharing,
    merge_topics,
    merge_volumes,
)


def topic(name: str, rate: float, *, rejected: bool = False, broker: str = "", **refused: int) -> dict[str, Any]:
    counts = {"appended_bytes": 10, "throttled_bytes": 2, "throttled_total": 1, "broker": broker}
    return {"topic": name, "threshold": 50.0, "rate": rate, "rejected": rejected, "refused_bytes": refused, **counts}


def topics(*rows: dict[str, Any], over: bool = False, brokers: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    total = topics_total("", sum(row["rate"] for row in rows), over=over)
    return {"configured": True, "meter": "one_minute", "total": total, "rows": list(rows), "brokers": brokers or []}


def topics_total(broker: str, rate: float, *, over: bool = False) -> dict[str, Any]:
    return {"threshold": 100.0, "rate": rate, "over": over, "broker": broker}


class TestTopics:
    def test_unconfigured_topics_stay_unconfigured(self) -> None:
        assert merge_topics([{"configured": False}, {"configured": False}]) == {"configured": False}

    def test_appended_bytes_are_added(self) -> None:
        one = topics(topic("a", 10.0, NOT_LEADER=3))
        other = topics(topic("a", 20.0, rejected=True, NOT_LEADER=1, TIMEOUT=2), topic("b", 5.0), over=True)
        merged = merge_topics([one, other])
        assert merged["total"] == topics_total("", 25.0, over=True)
        assert merged["brokers"] == []
        a, b = merged["rows"]
        assert a["rate"] == 20.0  # each worker's rate includes the other workers' bytes
        assert a["appended_bytes"] == 20
        assert a["rejected"] is True
        assert a["refused_bytes"] == {"NOT_LEADER": 4, "TIMEOUT": 2}
        assert b == topic("b", 5.0)

    def test_brokers_stay_apart(self) -> None:
        one = topics(topic("a", 10.0, broker="1"), brokers=[topics_total("1", 10.0)])
        other = topics(
            topic("a", 20.0, broker="1"), topic("a", 5.0, broker="2"),
            brokers=[topics_total("1", 20.0, over=True), topics_total("2", 5.0)],
        )  # fmt: skip
        merged = merge_topics([one, other])
        assert [(row["topic"], row["broker"], row["rate"]) for row in merged["rows"]] == [("a", "1", 20.0), ("a", "2", 5.0)]
        assert merged["brokers"] == [topics_total("1", 20.0, over=True), topics_total("2", 5.0)]
        assert merged["total"] == topics_total("1", 20.0, over=True)

    def test_merging_does_not_change_its_input(self) -> None:
        one, other = topics(topic("a", 10.0)), topics(topic("a", 20.0))
        merge_topics([one, other])
        assert (one, other) == (topics(topic("a", 10.0)), topics(topic("a", 20.0)))


class TestSharing:
    def test_least_connected_worker_decides(self) -> None:
        answers = [
            {"configured": True, "reachable": reachable, "members": members}
            for reachable, members in ((True, 4), (True, 3), (False, 5))
        ]
        assert merge_sharing(answers)["members"] == 5
        assert merge_sharing(answers[:2])["members"] == 3

    def test_unconfigured_sharing_stays_unconfigured(self) -> None:
        assert merge_sharing([{"configured": False}]) == {"configured": False}


class TestVolumes:
    def test_strictest_worker_decides(self) -> None:
        answers = [
            {"configured": True, "state": state, "delay_seconds": delay}
            for state, delay in (("OPEN", 0.0), ("THROTTLE", 1.0), ("PAUSE", 5.0), ("THROTTLE", 2.0))
        ]
        assert merge_volumes(answers)["state"] == "PAUSE"
        assert merge_volumes(answers[:2] + answers[3:])["delay_seconds"] == 2.0

    def test_unconfigured_volumes_stay_unconfigured(self) -> None:
        assert merge_volumes([{"configured": False}]) == {"configured": False}


ACCEPTED = {"result": "success", "at": "2026-01-01T00:01:00Z", "changes": ["x"], "problems": []}
REFUSED = {"result": "failure", "at": "2026-01-01T00:01:00Z", "changes": [], "problems": [{"key": "(file)"}]}


def config(number: int, last: object = None, mark: str = "a") -> dict[str, Any]:
    return {"version": number, "config": {"workers": number, "notify": mark}, "last_reload": last}


class TestConfig:
    def test_supervisor_has_the_version(self) -> None:
        merged = merge_config(config(2, ACCEPTED), [(0, config(3)), (1, config(1))])
        assert {name: merged[name] for name in ("version", "config", "last_reload")} == config(2, ACCEPTED)

    def test_worker_that_refused_the_file_is_listed(self) -> None:
        merged = merge_config(config(2, ACCEPTED), [(0, config(2, ACCEPTED)), (1, config(1, REFUSED))])
        assert merged["workers"] == [
            {"worker": 0, "version": 2, "current": True, "last_reload": ACCEPTED},
            {"worker": 1, "version": 1, "current": False, "last_reload": REFUSED},
        ]

    def test_marks_of_webhooks_are_no_difference(self) -> None:
        (worker,) = merge_config(config(2), [(0, config(2, mark="b"))])["workers"]
        assert worker["current"]


class TestHistory:
    def test_histories_of_different_moments_are_merged(self) -> None:
        one = [{"at": 10.9, "muted": 1.0, "throttles": 5.0}, {"at": 11.9, "muted": 2.0, "throttles": 6.0}]
        other = [{"at": 11.4, "muted": 10.0, "throttles": 50.0}, {"at": 12.4, "muted": 20.0, "throttles": 60.0}]
        assert merge_histories([one, other]) == [
            {"at": 11.4, "muted": 11.0, "throttles": 55.0},
            {"at": 12.4, "muted": 22.0, "throttles": 66.0},
        ]

    def test_shorter_history_is_merged(self) -> None:
        one = [{"at": at, "muted": 1.0, "throttles": 1.0} for at in (10.0, 11.0)]
        assert [point["muted"] for point in merge_histories([one, one[1:]])] == [1.0, 2.0]

    def test_no_histories_give_none(self) -> None:
        assert merge_histories([]) == []


OWN = {"version": 5, "last_reload": {"success": True}}


def test_live_page_shows_the_failure_of_a_worker() -> None:
    def facts(last: dict[str, Any] | None) -> dict[str, Any]:
        config = {"version": 1, "last_reload": last}
        return {"config": config, "connections": 0, "now": None, "brokers": [], "volumes": None}

    failure = {"success": False, "lines": ["(file)"]}
    answers = [facts(last) for last in (None, {"success": True}, failure)]
    assert merge_facts(answers, OWN)["config"] == {"version": 5, "last_reload": failure}
    assert merge_facts(answers[:2], OWN)["config"] == OWN


def test_snapshots_are_merged_without_entities() -> None:
    def facts(version: int, connections: int, *brokers: int, volumes: dict[str, Any] | None = None) -> dict[str, Any]:
        return {
            "config": {"version": version, "last_reload": None},
            "connections": connections,
            "now": {"at": 10.0, "muted": 1.0, "throttles": 2.0},
            "brokers": [{"id": broker, "address": f"b{broker}:9092"} for broker in brokers],
            "volumes": volumes,
        }

    paused = {"state": "PAUSE", "delay_seconds": 5.0}
    merged = merge_facts([facts(1, 2, 3, 1), facts(2, 5, 2, volumes={"state": "OPEN", "delay_seconds": 0.0})], OWN)
    assert merged["config"] == OWN
    assert merged["connections"] == 7
    assert merged["now"] == {"at": 10.0, "muted": 2.0, "throttles": 4.0}
    assert [broker["id"] for broker in merged["brokers"]] == [1, 2, 3]
    assert merged["volumes"]["state"] == "OPEN"
    assert merge_facts([facts(1, 1, volumes=paused), facts(1, 1)], OWN)["volumes"]["state"] == "PAUSE"
    assert merge_facts([facts(1, 1)], OWN)["volumes"] is None
