"""Temporary rows in a gateway: the wall clock puts them into effect, with events, and clients keep their debts."""

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import pytest

from gateway.background import BackgroundTasks
from gateway.events import GrantExpired, QuotaChanged
from gateway.features.client_quotas.feature import ClientQuotas, quota_settings
from gateway.log import JsonFormatter
from gateway.observer import Outlet
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from tests.gateway.config.texts import MINIMAL, entities, parsed
from tests.gateway.quotas.engines import bucket_of

END = datetime(2026, 12, 1, 6, tzinfo=UTC)
ROWS = (
    "{user: alice, producer_byte_rate: 1000000}",
    "{user: alice, producer_byte_rate: 8000000, until: 2026-12-01T06:00Z}",
    '{user: bob, exempt: true, schedule: {from: "07:00", to: "08:00", zone: UTC}}',
    "{user: carol, exempt: true, until: 2026-12-01T06:00Z}",
)


class Gateway:
    """The engine and the feature, with a wall clock that a test sets."""

    def __init__(self, *rows: str, now: datetime = END - timedelta(hours=1)) -> None:
        self.now = now
        self.events: list[object] = []
        self.reconsidered = asyncio.Event()
        section = parsed(entities(*rows)).quotas
        self.engine = QuotaEngine(quota_settings(section.at(now)[0]), 0.0)
        self.quotas = ClientQuotas(section, self.engine, Outlet("weir-1", [self]), self.reconsidered.set, lambda: self.now)

    def notify(self, event: object) -> None:
        self.events.append(event)

    def at(self, now: datetime) -> list[object]:
        """The events of the time until `now`."""
        self.now, self.events = now, []
        self.quotas.look(now)
        return self.events

    def limit(self, user: str = "alice") -> float | None:
        return bucket_of(self.engine, "produce", user, "x", 0.0).resolution.limit


def test_expired_grant_gives_the_plain_limit_and_an_event() -> None:
    gateway = Gateway(*ROWS)
    assert gateway.limit() == 8e6
    assert gateway.at(END - timedelta(microseconds=1)) == []
    changed, alice, carol = gateway.at(END)
    assert isinstance(changed, QuotaChanged)
    assert (changed.quota, changed.old_limit, changed.new_limit, changed.source) == ("user=alice", 8e6, 1e6, "schedule")
    assert isinstance(alice, GrantExpired)
    assert (alice.gateway, alice.quota, alice.user, alice.time_ms) == ("weir-1", "user=alice", "alice", 1_796_104_800_000)
    assert isinstance(carol, GrantExpired)
    assert carol.user == "carol"
    assert gateway.limit() == 1e6
    assert gateway.at(END + timedelta(hours=1)) == []


def test_schedule_begins_and_ends() -> None:
    gateway = Gateway(*ROWS, "{user: bob, producer_byte_rate: 5000000}", now=END + timedelta(hours=1, seconds=-1))
    assert gateway.limit("bob") == 5e6
    (begun,) = gateway.at(END + timedelta(hours=1))
    assert isinstance(begun, QuotaChanged)
    assert (begun.quota, begun.old_limit, begun.new_limit) == ("user=bob", 5e6, None)
    assert gateway.limit("bob") is None
    gateway.at(END + timedelta(hours=2))
    assert gateway.limit("bob") == 5e6


def test_log_names_grant_without_effect(caplog: pytest.LogCaptureFixture) -> None:
    """A value that was set through the API overrules the row of the schedule as well."""
    gateway = Gateway(*ROWS, now=END - timedelta(hours=1))
    api = {ClientQuotaEntity("alice"): {"producer_byte_rate": 1_000.0}}
    gateway.engine.apply(replace(gateway.engine.settings, dynamic=api), 0.0)
    with caplog.at_level(logging.INFO, "weir.quotas"):
        gateway.at(END)
    assert gateway.limit() == 1_000.0
    (line,) = caplog.messages
    assert "user=alice: producer_byte_rate stays 1000, because this value was set through the API" in line


def test_log_names_the_first_hundred_ended_rows(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway(*(f"{{user: u{number}, producer_byte_rate: 1, until: 2026-12-01T06:00Z}}" for number in range(150)))
    with caplog.at_level(logging.INFO, "weir.quotas"):
        gateway.at(END)
    (record,) = caplog.records
    line = JsonFormatter().format(record)
    assert line.count("does not count any more") == 100
    assert "; 50 more, 150 in all" in line


def test_clock_that_jumps_back_renews_a_grant_without_expiry() -> None:
    gateway = Gateway(*ROWS, now=END)
    assert gateway.limit() == 1e6
    assert [type(event) for event in gateway.at(END - timedelta(days=1))] == [QuotaChanged]
    assert gateway.limit() == 8e6


def test_client_keeps_its_debt_when_its_grant_ends() -> None:
    gateway = Gateway(*ROWS)
    bucket = bucket_of(gateway.engine, "produce", "alice", "x", 0.0)
    bucket.charge(100_000_000, 0.0)
    gateway.at(END)
    assert bucket_of(gateway.engine, "produce", "alice", "x", 0.0) is bucket
    assert bucket.resolution.limit == 1e6
    assert bucket.charge(0, 0.0)[0] > 0.0
    assert gateway.reconsidered.is_set()


def test_reload_reports_the_expiry_apart_from_its_own_changes() -> None:
    gateway = Gateway(*ROWS)
    gateway.now = END
    gateway.quotas.apply(parsed(entities("{user: alice, producer_byte_rate: 2000000}", *ROWS[1:])).quotas)
    sources = [(each.source, each.new_limit) for each in gateway.events if isinstance(each, QuotaChanged)]
    assert sources == [("schedule", 1e6), ("file", 2e6)]
    assert gateway.limit() == 2e6


def test_group_with_a_schedule_takes_its_members() -> None:
    gateway = Gateway("{user: zoe, request_rate: 100}")
    rows = '[{name: jobs, match: [{user: "j*"}], producer_byte_rate: 1000000, until: 2026-12-01T06:00Z}]'
    gateway.quotas.apply(parsed(MINIMAL + f"quotas: {{groups: {rows}}}\n").quotas)
    assert [bucket.resolution.limit for bucket in gateway.engine.acquire_path("produce", "j1", "x", 0.0)] == [None, 1e6]
    (expired,) = [event for event in gateway.at(END) if isinstance(event, GrantExpired)]
    assert expired.group == "jobs"
    assert len(gateway.engine.acquire_path("produce", "j1", "x", 0.0)) == 1


async def test_task_wakes_at_the_change() -> None:
    gateway = Gateway(*ROWS)
    real = datetime.now(UTC)
    gateway.now = END - timedelta(seconds=0.2)
    gateway.quotas._now = lambda: END - timedelta(seconds=0.2) + (datetime.now(UTC) - real)
    async with asyncio.timeout(30), BackgroundTasks(Counter()) as tasks:
        gateway.quotas.start(tasks)
        await gateway.reconsidered.wait()
        await gateway.quotas.stop()
    assert gateway.limit() == 1e6


async def test_reload_wakes_the_task() -> None:
    gateway = Gateway("{user: zoe, request_rate: 100}")
    gateway.quotas._now = lambda: gateway.now
    async with asyncio.timeout(30), BackgroundTasks(Counter()) as tasks:
        gateway.quotas.start(tasks)
        await asyncio.sleep(0)
        gateway.quotas.apply(parsed(entities(*ROWS)).quotas)
        gateway.reconsidered.clear()
        gateway.now = END
        await gateway.reconsidered.wait()
        await gateway.quotas.stop()
    assert gateway.limit() == 1e6


def test_engine_of_another_moment_gets_the_rows_of_now() -> None:
    section = parsed(entities(*ROWS)).quotas
    engine = QuotaEngine(quota_settings(section.at(END - timedelta(seconds=1))[0]), 0.0)
    ClientQuotas(section, engine, Outlet(), lambda: None, lambda: END)
    assert bucket_of(engine, "produce", "alice", "x", 0.0).resolution.limit == 1e6


def test_begin_of_a_schedule_takes_linear_time() -> None:
    plain = [f"{{user: user{number}, producer_byte_rate: {1000 + number}}}" for number in range(2_000)]
    gateway = Gateway(*plain, *ROWS)
    compared = 0

    def counted(self: EntityQuota, other: object) -> bool:
        nonlocal compared
        compared += 1
        return equals(self, other)

    equals = EntityQuota.__eq__
    with patch.object(EntityQuota, "__eq__", counted):
        gateway.at(END)
    assert gateway.limit() == 1e6
    assert compared < 10 * len(plain)
