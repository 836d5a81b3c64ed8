"""Notifications from the use of entities to a real HTTP server, and the log of episodes."""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway import clock
from gateway.admin.metrics.registry import METRICS
from gateway.admin.metrics.row import families
from gateway.admin.server import AdminServer
from gateway.admin.view import AdminView
from gateway.background import BackgroundTasks
from gateway.config.load import parse_config
from gateway.config.places import CurrentPlaces
from gateway.features.notify import feature as module
from gateway.features.notify.config import NotifyConfig
from gateway.features.notify.feature import Notify
from gateway.features.notify.message import NoticeContext, json_body, slack_body
from gateway.features.notify.metrics import METRICS as NOTIFY_METRICS
from gateway.features.notify.rules import ENDED, NEAR, THROTTLED, Notice, ProcessRows
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.snapshot import UsageRow
from gateway.steps import at_once
from gateway.workers.pages import WorkersServer
from gateway.workers.supervised_worker import SupervisedWorker
from tests.gateway.conftest import CONFIG
from tests.gateway.features.notify.rows import throttled, used
from tests.gateway.features.notify.test_webhook import PATIENCE, SECRET, Receiver, Silent
from tests.gateway.quotas.engines import bucket_of

WALL = 1_767_225_600.0
PARSED = parse_config(CONFIG, source="weir.yaml")
PLACES = CurrentPlaces(lambda: PARSED, "weir.yaml")


def section(port: int, **values: Any) -> NotifyConfig:
    url = f"http://127.0.0.1:{port}/{SECRET}"
    return NotifyConfig.model_validate({"targets": [{"name": "ops", "url": url, **values}]})


def notify(config: NotifyConfig | None, rows: Sequence[UsageRow] = (), places: CurrentPlaces = PLACES) -> Notify:
    async def now() -> ProcessRows:
        return {0: rows}

    return Notify(config, "gw-1", now, places, Path())


async def test_target_is_told_of_its_entities_once() -> None:
    async with Receiver().serve() as receiver, BackgroundTasks(restarts()) as tasks:
        subject = notify(section(receiver.port, entities=[{"user": "alice"}], events=["throttled", "ended"]))
        subject.start(tasks)
        alice, bob = throttled(1), throttled(1, user="bob", level="user=bob")
        for second in range(3):
            at_once(subject.look({0: [alice, bob]}, float(second), WALL + second))
        at_once(subject.look({0: []}, 400.0, WALL + 400.0))
        assert [(body["event"], body["entity"]["user"]) for body in await receiver.got(2)] == [
            ("throttled", "alice"),
            ("ended", "alice"),
        ]


def restarts() -> "Counter[str]":
    return Counter()


@pytest.mark.parametrize("change", [{"near_ratio": 0.7}, {"timeout_seconds": 6.0}])
async def test_unchanged_target_keeps_its_notifications(change: dict[str, float]) -> None:
    async with Receiver(503, headers={"Retry-After": "1"}).serve() as receiver, BackgroundTasks(restarts()) as tasks:
        first = section(receiver.port)
        subject = notify(first)
        subject.start(tasks)
        at_once(subject.look({0: [used(0.9)]}, 0.0, WALL))
        await receiver.got(1)
        subject.apply(first.model_copy(update=change))
        assert subject.report().waiting == {"ops": 1}
        assert [body["event"] for body in await receiver.got(2)] == ["near_quota", "near_quota"]


async def test_new_address_gets_waiting_notifications() -> None:
    """An operator corrects the address of a webhook that can't be reached."""
    async with (
        Receiver(503, headers={"Retry-After": "1"}).serve() as old,
        Receiver().serve() as new,
        BackgroundTasks(restarts()) as tasks,
    ):
        subject = notify(section(old.port))
        subject.start(tasks)
        at_once(subject.look({0: [used(0.9)]}, 0.0, WALL))
        await old.got(1)
        subject.apply(section(new.port))
        assert subject.report().waiting == {"ops": 1}
        assert [body["event"] for body in await new.got(1)] == ["near_quota"]


@pytest.mark.parametrize("change", [{"format": "slack"}, {"entities": [{"user": "bob"}]}])
async def test_changed_target_counts_lost_notifications(change: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """They have another format, or may be about entities of another tenant."""
    async with Receiver(503, headers={"Retry-After": "3600"}).serve() as receiver, BackgroundTasks(restarts()) as tasks:
        subject = notify(section(receiver.port))
        subject.start(tasks)
        at_once(subject.look({0: [used(0.9)]}, 0.0, WALL))
        await receiver.got(1)
        subject.apply(section(receiver.port, **change))
        assert subject.report().waiting == {"ops": 0}
        assert subject.report().results == {"ops": {"sent": 0, "failed": 0, "dropped": 1}}
    assert "notify target ops: a reload changed it, and waiting notifications are lost: 1" in caplog.text


async def test_rows_are_looked_at_until_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    async with Receiver().serve() as receiver, BackgroundTasks(restarts()) as tasks:
        subject = notify(section(receiver.port), [used(0.9)])
        subject.start(tasks)
        (body,) = await receiver.got(1)
        await subject.stop()
    assert (body["event"], body["gateway"], body["used_ratio"]) == ("near_quota", "gw-1", 0.9)


async def stopped(receiver: Receiver) -> Notify:
    """A feature that stops after a failed attempt for alice, while bob's notification waits as well."""
    async with BackgroundTasks(restarts()) as tasks:
        subject = notify(section(receiver.port))
        subject.start(tasks)
        at_once(subject.look({0: [used(0.9), used(0.9, user="bob")]}, 0.0, WALL))
        await receiver.got(1)
        await subject.stop()
    return subject


async def test_stop_sends_waiting_notifications(caplog: pytest.LogCaptureFixture) -> None:
    async with Receiver(503, headers={"Retry-After": "3600"}).serve() as receiver:
        subject = await stopped(receiver)
        assert [body["entity"]["user"] for body in receiver.bodies] == ["alice", "alice", "bob"]
    assert subject.report().results == {"ops": {"sent": 2, "failed": 0, "dropped": 0}}
    assert "are lost" not in caplog.text


async def test_stop_logs_lost_notifications(caplog: pytest.LogCaptureFixture) -> None:
    async with Receiver(503, 503, 503).serve() as receiver:
        await stopped(receiver)
        assert [body["entity"]["user"] for body in receiver.bodies] == ["alice", "alice", "bob"]
    assert "notify target ops: the gateway stops, and waiting notifications are lost: 2" in caplog.text


async def test_stop_does_not_wait_for_a_silent_target(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_SECONDS", 0.05)
    async with Silent().serve() as receiver:
        await asyncio.wait_for(stopped(receiver), PATIENCE)
        assert [body["entity"]["user"] for body in receiver.bodies] == ["alice"]
    assert "notify target ops: the gateway stops, and waiting notifications are lost: 2" in caplog.text


async def test_reload_changes_targets_and_keeps_episodes() -> None:
    async with Receiver().serve() as old, Receiver().serve() as new, BackgroundTasks(restarts()) as tasks:
        subject = notify(section(old.port))
        subject.start(tasks)
        at_once(subject.look({0: [used(0.9)]}, 0.0, WALL))
        await old.got(1)
        subject.apply(section(new.port))
        at_once(subject.look({0: [throttled(1)]}, 1.0, WALL))
        assert [body["event"] for body in await new.got(1)] == ["throttled"]
        subject.apply(None)
        assert subject.report().results == {}
        assert subject.report().episodes == 1


def test_each_notice_is_a_step() -> None:
    """An outage of a broker may throttle a thousand clients in one moment."""
    rows = {0: [throttled(1, user=f"user-{number}") for number in range(100)]}
    assert sum(1 for _ in notify(None).look(rows, 0.0, WALL)) >= 200


def test_log_names_quota_place_addresses_and_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    row = throttled(1, level="user=<default>, client-id=<default>", client_id="etl", addresses=("10.0.0.7",))
    at_once(notify(None).look({0: [row]}, 0.0, WALL))
    (record,) = caplog.records
    assert record.getMessage() == (
        "user alice, client-id etl is throttled by producer_byte_rate 1.00 MiB/s of user=<default>, client-id=<default>"
        " (weir.yaml:6): mean rate 879 KiB/s with the burst. Addresses: 10.0.0.7."
    )
    assert vars(record)["episode_seconds"] == vars(record)["since"] == 0.0
    assert (vars(record)["user"], vars(record)["set_in"], vars(record)["addresses"]) == ("alice", "weir.yaml:6", ["10.0.0.7"])


CONTEXT = NoticeContext("gw-1", WALL, "weir.yaml:6", enforce=True, page_url="http://weir:9644/")


def test_json_body_has_units_and_times() -> None:
    body = json_body(Notice(THROTTLED, throttled(3, addresses=("10.0.0.7",)), 30.0, 2, 1.2), CONTEXT)
    assert body["entity"] == {"user": "alice", "client_id": None, "ip": None, "group": None}
    assert (body["key"], body["limit"], body["unit"]) == ("producer_byte_rate", 1_048_576.0, "bytes/s")
    assert body["quota"] == {"entity": "user=alice", "set_in": "weir.yaml:6"}
    assert (body["at"], body["episode_began"]) == ("2026-01-01T00:00:00.000Z", "2025-12-31T23:59:30.000Z")
    assert body["page"] == "http://weir:9644/entities?user=alice"


def test_guide_has_each_field_of_the_body() -> None:
    guide = (Path(__file__).parents[4] / "docs" / "how-to" / "notify-tenants.md").read_text("utf-8")
    rows = "".join(line.split(" | ")[0] for line in guide.splitlines() if line.startswith("| `"))
    assert set(re.findall("`(.*?)`", rows)) == set(json_body(Notice(THROTTLED, throttled(3), 30.0, 2, 1.2), CONTEXT))


def test_notice_of_a_group_with_a_parent_names_its_share(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    quotas = """
  groups:
    - {name: whole, producer_byte_rate: 2097152}
    - {name: pay, parent: whole, match: [{user: pay}], producer_byte_rate: 1048576}
"""
    config = parse_config(CONFIG.replace("quotas:", f"quotas:{quotas.rstrip()}"), source="weir.yaml")
    rows = [throttled(1, user="", group=name, level=f"group={name}") for name in ("whole", "pay")]
    at_once(notify(None, places=CurrentPlaces(lambda: config, "weir.yaml")).look({0: rows}, 0.0, WALL))
    whole, pay = [record.getMessage() for record in caplog.records]
    assert whole.startswith("group whole is throttled by producer_byte_rate 1.00 MiB/s of group=whole (weir.yaml")
    assert pay.startswith("group pay is throttled by its present share of producer_byte_rate 1.00 MiB/s of group=pay")
    assert pay.endswith("use 879 KiB/s, 120% of the share.")


@pytest.mark.parametrize(
    ("event", "enforce", "words"),
    [
        (
            NEAR,
            True,
            "uses 120% of its present share of producer_byte_rate 1.00 MiB/s of `user=alice` (weir.yaml:6). Throttling",
        ),
        (
            THROTTLED,
            False,
            "is over, and not throttled by, the unenforced share of producer_byte_rate 1.00 MiB/s of `user",
        ),
        (
            ENDED,
            True,
            "has been below its present share of producer_byte_rate 1.00 MiB/s of `user=alice` (weir.yaml:6) for 0 s.",
        ),
    ],
)
def test_each_event_of_a_share_says_so(event: str, enforce: bool, words: str) -> None:
    notice = Notice(event, throttled(3), 30.0, 2, 1.2)
    assert words in slack_body(notice, replace(CONTEXT, enforce=enforce, shares=True))["text"]


def test_notice_names_the_broker_of_the_quota() -> None:
    notice = Notice(THROTTLED, throttled(3, broker="2"), 30.0, 2, 1.2)
    assert json_body(notice, CONTEXT)["broker"] == "2"
    assert "producer_byte_rate 1.00 MiB/s of `user=alice` at broker 2 (weir.yaml:6)" in slack_body(notice, CONTEXT)["text"]


def test_slack_text_is_escaped() -> None:
    row = throttled(1, user="<!channel> & co", level="user=<!channel> & co")
    text = slack_body(Notice(THROTTLED, row, 0.0, 1, 1.2), CONTEXT)["text"]
    assert text.startswith("user `&lt;!channel&gt; &amp; co` is throttled by producer_byte_rate 1.00 MiB/s of `user=&lt;!")
    assert text.endswith("<http://weir:9644/entities?user=%3C%21channel%3E+%26+co|Details>")
    assert "<!" not in text


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("@all", "`@all`"),
        ("[log in](https://evil.example)", "`[log in](https://evil.example)`"),
        ("a` @all `", r"`a\x60 @all \x60`"),
        ("a\nAll quotas are *fine*.", r"`a\nAll quotas are *fine*.`"),
        ("a\u202egnihton", r"`a\u202egnihton`"),
    ],
)
def test_name_in_slack_text_is_code_on_one_line(name: str, shown: str) -> None:
    """Mattermost and Rocket.Chat read the text as Markdown."""
    row = throttled(1, client_id=name, level=f"client-id={name}")
    text = slack_body(Notice(THROTTLED, row, 0.0, 1, 1.2), CONTEXT)["text"]
    assert text.startswith(f"user `alice`, client-id {shown} is throttled by producer_byte_rate 1.00 MiB/s of `client-id=")
    assert (text.count("`"), "\n" in text, "\u202e" in text) == (6, False, False)


@pytest.mark.parametrize(
    ("notice", "words"),
    [
        (Notice(NEAR, used(0.85), 0.0, 0, 0.85), "uses 85% of its quota producer_byte_rate 1.00 MiB/s of `user=alice`"),
        (
            Notice(ENDED, used(0.1), 360.0, 12, 1.3, (THROTTLED,), 300.0),
            "for 300 s. In the 60 s before: 12 requests were throttled, peak 130%",
        ),
        (Notice(ENDED, used(0.1), 360.0, 0, 0.9, (NEAR,), 300.0), "for 300 s. In the 60 s before: no throttle, peak 90%"),
    ],
)
def test_slack_text_of_each_event(notice: Notice, words: str) -> None:
    assert words in slack_body(notice, CONTEXT)["text"]


def test_families_are_the_registered_metrics() -> None:
    names = [family.name for family in families(NOTIFY_METRICS, notify(None).report())]
    assert names == [row.name.removesuffix("_total") for row in METRICS if row.name.startswith("weir_notify_")]


async def test_episode_of_several_workers_is_reported_once(tmp_path: Path, view: AdminView) -> None:
    """Two workers throttle one client, each by its own bucket: the supervisor sees the merged use."""
    servers, workers = [], []
    for number in range(2):
        quota = EntityQuota(ClientQuotaEntity("alice"), {"producer_byte_rate": 100_000})
        engine = QuotaEngine(QuotaSettings((quota,)), clock.monotonic())
        bucket = bucket_of(engine, "produce", "alice", "etl", clock.monotonic())
        bucket.charge(5_000_000, clock.monotonic())
        bucket.episode.note_address(f"10.0.0.{number}")
        of_worker = AdminView(engine, view.counters, view.effective, view.not_ready)
        server = AdminServer(of_worker, tmp_path / f"worker-{number}")
        await server.start()
        servers.append(server)
        worker = SupervisedWorker(number, (), tmp_path / f"worker-{number}", lambda: 1)
        worker.process = number + 1
        workers.append(worker)
    async with Receiver().serve() as receiver, BackgroundTasks(restarts()) as tasks:
        supervisor = WorkersServer(workers, ("127.0.0.1", 0), lambda: None, {}, view.effective)
        subject = notify(section(receiver.port))
        subject.start(tasks)
        for second in range(3):
            at_once(subject.look(await supervisor.active_rows(), float(second), WALL))
        at_once(subject.look({}, 400.0, WALL))
        bodies = await receiver.got(2)
    await asyncio.gather(*(server.stop() for server in servers))
    assert [body["event"] for body in bodies] == ["throttled", "ended"]
    assert bodies[0]["addresses"] == ["10.0.0.0", "10.0.0.1"]
    assert await supervisor.active_rows() == {1: None, 2: None}
