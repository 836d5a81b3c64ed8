"""The live page: its events once per second over a real socket, and a page without external resources."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.resources import files

import aiohttp
import pytest

from gateway.admin import live
from gateway.admin.live import MAX_THROTTLED, GatewaySnapshots
from gateway.admin.server import AdminServer
from gateway.admin.view import AdminView
from gateway.clock import iso
from gateway.config.effective import ReloadResult
from gateway.config.problems import Problem
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.snapshot import HOLD_SECONDS, UsageRow
from gateway.steps import Steps
from tests.gateway.admin.serving import served, visiting
from tests.gateway.conftest import NOW
from tests.gateway.features.notify.rows import used
from tests.gateway.quotas.engines import bucket_of

PAGE = files("gateway.admin").joinpath("dashboard.html").read_text()


@pytest.fixture
async def server(view: AdminView, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AdminServer]:
    monkeypatch.setattr(live, "SNAPSHOT_SECONDS", 0.01)
    brokers = {2: ("b2", 9092), 1: ("b1", 9092)}
    async with served(AdminServer(replace(view, brokers=lambda: brokers), ("127.0.0.1", 0))) as running:
        yield running


async def events(response: aiohttp.ClientResponse, count: int) -> list[tuple[str, object]]:
    """Return the next `count` events of a stream."""
    found = []
    for _ in range(count):
        block = (await response.content.readuntil(b"\n\n")).decode()
        name, data = block.strip().split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def test_stream_sends_history_then_snapshots(server: AdminServer) -> None:
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session,
        session.get("/api/stream") as response,
    ):
        assert response.content_type == "text/event-stream"
        (first, history), (second, snapshot), (third, later) = await events(response, 3)
    assert (first, second, third) == ("history", "snapshot", "snapshot")
    assert isinstance(history, list)
    assert isinstance(snapshot, dict)
    assert isinstance(later, dict)
    assert snapshot["throttled_count"] == 1
    (row,) = snapshot["throttled"]
    assert (row["kind"], row["user"], row["client_id"], row["left"]) == ("produce", "alice", "etl", pytest.approx(3.0))
    assert (row["limit"], row["ratio"], row["early"]) == (100_000, pytest.approx(1.3), 2)
    assert [each["user"] for each in snapshot["top"]] == ["alice", "bob", ""]
    assert snapshot["brokers"] == [{"id": 1, "address": "b1:9092"}, {"id": 2, "address": "b2:9092"}]
    assert (snapshot["enforce"], snapshot["connections"], snapshot["volumes"]) == (True, 3, None)
    assert snapshot["config"]["version"] == 1
    assert later["now"]["muted"] == 1


async def test_stream_has_no_head(server: AdminServer) -> None:
    """An answer to HEAD with events behind it would keep a viewer's place."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session, session.head("/api/stream") as response:
        assert response.status == 405


async def test_stopping_server_ends_streams(view: AdminView) -> None:
    server = AdminServer(view, ("127.0.0.1", 0))
    await server.start()
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session,
        session.get("/api/stream") as response,
    ):
        await events(response, 2)
        await asyncio.wait_for(server.stop(), 30.0)
        await response.content.read()


async def test_failed_second_does_not_end_the_page(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Source:
        """The second second fails, as for rows of a worker with another version."""

        seconds = 0
        further = asyncio.Event()

        def record_second(self) -> None:
            self.seconds += 1
            if self.seconds == 2:
                raise KeyError("group")
            if self.seconds > 2:
                self.further.set()

        async def snapshot_with_history(self) -> tuple[list[live.Point], dict[str, object]]:
            return [], {}

    monkeypatch.setattr(live, "SNAPSHOT_SECONDS", 0.01)
    source = Source()
    feed = live.LiveFeed(source)
    feed.start()
    await asyncio.wait_for(source.further.wait(), 30.0)
    await feed.stop()
    assert "the live page misses a second" in caplog.text


async def test_viewer_over_the_limit_is_refused(server: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_VIEWERS", 1)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session, session.get("/api/stream") as one:
        await events(one, 1)
        async with session.get("/api/stream") as other:
            assert other.status == 503
            assert "viewers are the maximum" in await other.text()


async def test_picture_holds_no_more_than_the_page_shows(view: AdminView) -> None:
    quota = EntityQuota(ClientQuotaEntity(DEFAULT), {"producer_byte_rate": 1_000})
    engine = QuotaEngine(QuotaSettings((quota,)), NOW, max_labelled=5_000)
    for number in range(MAX_THROTTLED + 5):
        bucket_of(engine, "produce", f"user-{number}", "app", NOW).charge(20_000 + number, NOW)
    snapshot = await GatewaySnapshots(replace(view, engine=engine)).snapshot()
    assert snapshot["throttled_count"] == MAX_THROTTLED + 5
    assert len(snapshot["throttled"]) == MAX_THROTTLED
    assert snapshot["throttled"][0]["user"] == f"user-{MAX_THROTTLED + 4}"


async def test_picture_has_the_first_lines_of_a_reload(view: AdminView) -> None:
    changes = tuple([f"quotas.entities: added user=tenant-{number}" for number in range(10_000)])
    view.effective.record(ReloadResult(0.0, view.effective.config, changes))
    reload = (await GatewaySnapshots(view).snapshot())["config"]["last_reload"]
    assert (reload["success"], reload["lines"], reload["line_count"]) == (True, list(changes[:6]), 10_000)
    problems = tuple([Problem("quotas", f"odd {number}", "mend it") for number in range(6)])
    view.effective.record(ReloadResult(0.0, view.effective.config, problems=problems))
    reload = (await GatewaySnapshots(view).snapshot())["config"]["last_reload"]
    assert (reload["success"], reload["lines"], reload["line_count"]) == (False, [str(each) for each in problems], 6)


async def test_ipv6_address_of_a_broker_has_brackets(view: AdminView) -> None:
    snapshot = await GatewaySnapshots(replace(view, brokers=lambda: {1: ("2001:db8::1", 9092)})).snapshot()
    assert snapshot["brokers"] == [{"id": 1, "address": "[2001:db8::1]:9092"}]


async def test_picture_counts_members_and_not_their_group_in_sums(view: AdminView) -> None:
    jobs = Group("jobs", (GroupRule(client_id="job-*"),), {"producer_byte_rate": 1_000})
    engine = QuotaEngine(QuotaSettings((jobs.quota,), groups=(jobs,)), NOW)
    for bucket in engine.acquire_path("produce", "alice", "job-1", NOW):
        bucket.charge(30_000, NOW)
    snapshot = await GatewaySnapshots(replace(view, engine=engine)).snapshot()
    own, group = (next(row for row in snapshot["top"] if row["group"] == name) for name in ("", "jobs"))
    assert snapshot["rates"]["produce"] == own["rate"] == group["rate"] > 0
    assert [row["group"] for row in snapshot["throttled"]] == ["jobs"]


async def test_entity_stays_throttled_for_a_while_after_its_throttle(view: AdminView) -> None:
    """Requests of one producer are throttled one after the other, so a row would come and go many times a second."""
    quota = EntityQuota(ClientQuotaEntity(DEFAULT), {"producer_byte_rate": 1_000})
    engine = QuotaEngine(QuotaSettings((quota,)), NOW)
    bucket = bucket_of(engine, "produce", "alice", "app", NOW)
    bucket.charge(10_500, NOW)
    over = NOW + bucket.throttle_left(NOW)
    times = iter((over + HOLD_SECONDS - 0.1, over + HOLD_SECONDS + 0.1))
    snapshots = GatewaySnapshots(replace(view, engine=engine, monotonic=lambda: next(times)))
    held, gone = await snapshots.snapshot(), await snapshots.snapshot()
    assert (held["throttled_count"], held["throttled"][0]["left"]) == (1, 0.0)
    assert (gone["throttled_count"], gone["throttled"]) == (0, [])


async def test_throttle_began_as_long_ago_as_its_row_says(view: AdminView) -> None:
    """Also if a busy gateway needs long to read its rows."""

    class Slow:
        passed = 0.0
        overflowed = 0

        def rows(self, now: float) -> Steps[list[UsageRow]]:
            self.passed += 7.0
            yield
            return [used(1.2, throttle_left=3.0, throttled_seconds=now - NOW)]

    slow = Slow()
    view = replace(view, engine=slow, monotonic=lambda: NOW + 1.0 + slow.passed, wall=lambda: 101.0 + slow.passed)
    async with visiting(view) as session, session.get("/api/throttles") as response:
        (listed,) = (await response.json())["rows"]
    (shown,) = (await GatewaySnapshots(view).snapshot())["throttled"]
    assert (listed["throttled_since"], shown["since"]) == (iso(100.0), iso(100.0))


def test_page_loads_nothing_from_elsewhere() -> None:
    assert re.findall(r"(?:src|href)=.(?:https?:)?//[^\"' ]*", PAGE) == []
    assert re.findall(r"@import|<script src|<link rel=.stylesheet", PAGE) == []


def test_page_has_every_element_that_its_script_fills() -> None:
    written = set(re.findall(r"\$\(\"([a-z-]+)\"\)", PAGE)) | set(re.findall(r"table\(\"([a-z]+)\"", PAGE))
    assert written <= set(re.findall(r"id=\"([a-z-]+)\"", PAGE))


def test_page_says_how_many_lines_of_a_reload_it_leaves_out() -> None:
    assert "and ${reload.line_count - reload.lines.length} more: /api/config" in PAGE
