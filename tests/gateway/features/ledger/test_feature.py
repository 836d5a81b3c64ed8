"""The ledger records events, and its failures never end the gateway."""

import asyncio
import gzip
import json
import logging
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway import clock, time_slices
from gateway.background import BackgroundTasks
from gateway.events import ConnectionRejected, UsageSample
from gateway.features.ledger import feature
from gateway.features.ledger.config import LedgerConfig
from gateway.features.ledger.feature import MAX_REJECTIONS, Ledger, RejectionFolds
from gateway.features.ledger.shadow_sampler import ShadowSampler
from gateway.features.ledger.usage_sampler import UsageSampler
from gateway.ledger_paths import file_name, in_progress_name, partition
from gateway.observer import LimitChange, Outlet
from gateway.proxy.counters import Counters
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.shadows import EngineWithShadows
from gateway.steps import at_once

Written = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def config(tmp_path: Path) -> LedgerConfig:
    return LedgerConfig.model_validate({"path": str(tmp_path), "gateway": "weir-1", "rotate_seconds": 1})


@pytest.fixture
def ledger(config: LedgerConfig, counters: Counters) -> Ledger:
    return Ledger(config, "weir-1", counters)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Return the lines of all files, including unfinished ones."""

    def read() -> list[dict[str, Any]]:
        files = sorted(tmp_path.rglob("*weir-*"))
        return [json.loads(line) for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]

    return read


def rejection(**fields: Any) -> ConnectionRejected:
    return ConnectionRejected(**{"time_ms": 0, "last_ms": 0, "gateway": "weir-1", "reason": "idle", **fields})


async def test_name_that_utf8_cannot_encode_is_written(ledger: Ledger, written: Written, counters: Counters) -> None:
    ledger.notify(rejection(address="\ud800"))
    await ledger.flush()
    assert [event["address"] for event in written()] == ["\ud800"]
    assert counters.ledger_dropped == 0


async def test_rejections_of_users_are_folded_apart(ledger: Ledger, written: Written) -> None:
    for user in ("alice", "bob", "alice"):
        ledger.notify(rejection(reason="max_per_user", address="10.0.0.1", user=user))
    await ledger.flush()
    assert [(event["user"], event["count"]) for event in written()] == [("alice", 2), ("bob", 1)]


async def test_folds_end_after_a_minute_at_the_latest(
    config: LedgerConfig, counters: Counters, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    monkeypatch.setattr(feature, "_LOOK_SECONDS", 0.0)
    ledger = Ledger(config.model_copy(update={"flush_seconds": 3_600.0}), "weir-1", counters)
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(ledger._run())
    await asyncio.sleep(0)
    async with asyncio.timeout(30.0):
        for number in range(2):
            ledger.notify(rejection(count=number))
            now += 60.0
            while len(await loop.run_in_executor(ledger._thread, written)) <= number:  # no file is renamed meanwhile
                pass
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [event["count"] for event in written()] == [0, 1]


async def test_rights_of_groups_are_written_at_exit(config: LedgerConfig, counters: Counters, written: Written) -> None:
    root = Group("all", (), {"producer_byte_rate": 1_000.0})
    team = Group("team", (GroupRule(user="alice"),), parent="all")
    now = clock.monotonic()
    engine = QuotaEngine(QuotaSettings((root.quota, team.quota), groups=(root, team)), now)
    for bucket in engine.acquire_path("produce", "alice", "etl", now):
        bucket.charge(500, now)
    rows = engine.group_buckets.rows
    Ledger(config, "weir-1", counters, [(UsageSampler(clock.wall()), engine.buckets)], groups=rows).close()
    rights = {event["group"]: (event.get("parent"), event["entitlement"]) for event in written() if event["type"] == "group"}
    assert rights == {"all": (None, 1_000.0), "team": ("all", 1_000.0)}


async def test_no_number_of_changed_limits_pushes_samples_out(
    config: LedgerConfig, counters: Counters, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature, "MAX_PENDING", 3)
    now, wall = clock.monotonic(), clock.wall()
    root = Group("all", (), {"producer_byte_rate": 1_000.0})
    team = Group("team", (GroupRule(user="alice"),), parent="all")
    alice = EntityQuota(ClientQuotaEntity("alice"), shadow={"producer_byte_rate": 100.0})
    engine = EngineWithShadows(QuotaSettings((root.quota, team.quota, alice), groups=(root, team)), now)
    for bucket in engine.acquire_path("produce", "alice", "etl", now):
        bucket.charge(10_000, now)
    samplers = (UsageSampler(wall), engine.buckets), (ShadowSampler(wall), engine.shadows.buckets)
    ledger = Ledger(config, "weir-1", counters, samplers, groups=engine.group_buckets.rows)
    changes = [LimitChange(ClientQuotaEntity(f"user-{number}"), "producer_byte_rate", 1.0, 2.0) for number in range(5)]
    outlet = Outlet("weir-1", [ledger])
    for event in outlet.quota_events(changes):
        outlet.notify(event)
    ledger.close()
    types = Counter(event["type"] for event in written())
    assert types == {"quota_change": 3, "usage": 2, "shadow": 1, "group": 2}
    assert counters.ledger_dropped == 2


class Full:
    """A topic without room."""

    connected = True
    dropped = 0

    async def run(self) -> None:
        """Sends nothing."""

    def publish(self, line: str) -> None:
        self.dropped += 1

    def end(self) -> None:
        """Can't save a line."""
        self.dropped += 1


async def test_ledger_topic_drops_are_counted_separately(config: LedgerConfig, written: Written, counters: Counters) -> None:
    ledger = Ledger(config, "weir-1", counters, topic=Full())
    ledger.notify(rejection())
    await ledger.flush()
    for _ in range(2):  # each drop counts once
        at_once(ledger._sample())
    assert len(written()) == 1
    assert (counters.ledger_dropped, counters.ledger_topic_dropped) == (0, 1)


async def test_lines_lost_at_exit_are_counted(config: LedgerConfig, counters: Counters) -> None:
    async with BackgroundTasks(Counter()) as tasks:
        Ledger(config, "weir-1", counters, topic=Full()).start(tasks)
    assert counters.ledger_topic_dropped == 1


async def test_event_that_json_cannot_hold_loses_nothing_else(ledger: Ledger, written: Written, counters: Counters) -> None:
    for amount in (float("nan"), 2.0):
        ledger.notify(UsageSample(time_ms=0, gateway="weir-1", kind="produce", amount=amount))
    await ledger.flush()
    assert [event["amount"] for event in written()] == [2.0]
    assert counters.ledger_dropped == 1


async def test_flush_that_exit_interrupts_loses_nothing(
    ledger: Ledger, written: Written, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_slices, "LONGEST_SLICE_SECONDS", 0.0)  # one step a slice, however busy the machine is
    for number in range(100):
        ledger.notify(UsageSample(time_ms=0, gateway="weir-1", kind="produce", amount=float(number)))
    flush = asyncio.create_task(ledger.flush())
    for _ in range(10):
        await asyncio.sleep(0)
    ledger.notify(UsageSample(time_ms=0, gateway="weir-1", kind="produce", amount=100.0))
    flush.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flush
    ledger.close()
    assert [event["amount"] for event in written()] == [float(number) for number in range(101)]
    assert counters.ledger_dropped == 0


async def test_running_ledger_finishes_files_of_other_names(
    ledger: Ledger, tmp_path: Path, written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / partition(0)
    folder.mkdir(parents=True)
    left = folder / in_progress_name(file_name("weir-9", 0, 0))
    left.write_bytes(gzip.compress(b"{}\n"))
    os.utime(left, (0.0, 0.0))
    ledger._retain()
    assert not left.exists()
    assert written() == [{}]
    assert caplog.messages == ["1 unfinished files of a gateway that has ended are finished"]


async def test_failed_flush_is_counted_and_next_succeeds(
    ledger: Ledger, written: Written, counters: Counters, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("gateway.features.ledger.files.gzip.compress", None)
        ledger.notify(rejection(count=1))
        await ledger.flush()
    ledger.notify(rejection(count=2))
    await ledger.flush()
    assert [event["count"] for event in written()] == [2]
    assert counters.ledger_dropped == 1
    assert "1 events are lost" in caplog.text


def folded(folds: RejectionFolds) -> list[tuple[int, int, str | None, int]]:
    return [(event.time_ms, event.last_ms, event.address, event.count) for event in folds.take("weir-1")]


def test_rejections_are_folded() -> None:
    folds = RejectionFolds()
    for number, address in enumerate(("10.0.0.1", "10.0.0.2", "10.0.0.1")):
        folds.add(rejection(time_ms=number, last_ms=number, address=address))
    assert folded(folds) == [(0, 2, "10.0.0.1", 2), (1, 1, "10.0.0.2", 1)]
    assert folded(folds) == []


def test_rejections_past_the_bound_are_counted_as_dropped() -> None:
    folds = RejectionFolds()
    for number in range(MAX_REJECTIONS + 3):
        folds.add(rejection(address=str(number)))
    folds.add(rejection(address="0"))
    assert folds.dropped == 3
    assert sum(count for *_, count in folded(folds)) == MAX_REJECTIONS + 1
