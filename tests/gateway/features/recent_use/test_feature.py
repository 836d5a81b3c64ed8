"""Recent use over a restart: saves do not block the loop, and the restore ends before the first client is served."""

import asyncio
import logging
from collections import Counter

import pytest

from gateway import clock
from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits, ConnectionQuotas
from gateway.features.recent_use import feature as recent_usage
from gateway.features.recent_use.feature import RecentUsage
from gateway.features.recent_use.usage_file import read_usage, write_usage
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from gateway.steps import at_once
from tests.gateway.quotas.engines import bucket_of

QUOTAS = QuotaSettings((EntityQuota(ClientQuotaEntity(client_id=DEFAULT), {"producer_byte_rate": 1_000.0}),))
LIMITS = ConnectionLimits(max_per_ip=9, gateway=AcceptLimits(connection_creation_rate=0.001), listeners={"a": AcceptLimits()})


class Gateway:
    """The objects of one gateway process; a restart creates new ones."""

    def __init__(self, path, interval=0.01):
        now = clock.monotonic()
        self.engine = QuotaEngine(QUOTAS, now)
        self.connections = ConnectionQuotas(self.engine, LIMITS, now)
        self.usage = RecentUsage(path, interval, self.engine, self.connections, None, None, Counter())

    def charge(self, client_id, amount):
        now = clock.monotonic()
        return bucket_of(self.engine, "produce", "alice", client_id, now).charge(amount, now)[0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "usage.jsonl"


async def test_client_over_quota_stays_over_after_restart(path):
    first = Gateway(path)
    for number in range(1_000):  # more than a save reads between two turns of the loop
        first.charge(f"client-{number}", 100_000)
    first.connections.accept("a", "10.0.0.1", clock.monotonic())
    await first.usage.save()
    assert first.usage.saves == {"success": 1}

    second = Gateway(path)
    before = clock.monotonic()
    await second.usage.restore()
    restored = clock.monotonic()
    # The burst is 10 000: 90 s of debt, less the time that has passed, and 1 s for the new charge.
    assert [second.charge(f"client-{number}", 1_000) for number in (0, 500, 999)] == pytest.approx([91.0] * 3, abs=20.0)
    assert second.charge("another", 1_000) == 0.0
    assert before < before + second.connections.wait("a", before) <= restored + 1.0


def test_all_lines_of_a_long_save_have_the_age_of_its_end(path, monkeypatch):
    now = clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    gateway = Gateway(path)
    for number in range(100):
        gateway.charge(f"client-{number}", 100_000)
    steps = gateway.usage._uses()
    while True:
        now += 0.1
        try:
            next(steps)
        except StopIteration as end:
            at, uses = end.value
            break
    write_usage(path, at, at_once(gateway.usage._lines(at, uses)))
    missing = [use.amount - 1_000.0 * use.ended for each in read_usage(path).entities for use in each.use.used]
    assert len(missing) == 100
    assert max(missing) - min(missing) < 1.0


def test_pause_follows_the_work_of_a_save_and_not_its_waits(path, monkeypatch):
    busy = 0.0
    monkeypatch.setattr(clock, "busy", lambda: busy)
    usage = Gateway(path).usage

    def work():
        nonlocal busy
        for _ in range(2):
            busy += 1.0
            yield
        return "done"

    steps = usage._measured(work())
    for _ in range(2):
        next(steps)
        busy += 100.0  # the event loop serves clients
    with pytest.raises(StopIteration, match="done"):
        next(steps)
    assert usage._worked == 2.0


def test_topics_are_listed_as_they_are_saved(path):
    class Topics:
        def __init__(self):
            self.listed = 0

        def accounts(self):
            for self.listed in range(1, 101):
                yield ("topic", f"t{self.listed}"), None

        def recent_uses(self, accounts, now):
            return ()

    topics, gateway = Topics(), Gateway(path)
    gateway.usage._topics = topics
    steps = gateway.usage._uses()
    next(steps)
    assert 0 < topics.listed <= 10
    assert at_once(steps)[1] == []
    assert topics.listed == 100


async def test_nothing_to_remember_writes_no_file(path):
    gateway = Gateway(path)
    await gateway.usage.restore()
    await gateway.usage.save()
    assert not path.exists()


async def test_restored_use_is_not_restored_twice(path):
    first = Gateway(path)
    first.charge("etl", 100_000)
    await first.usage.save()
    second = Gateway(path)  # without `restore`, so its buckets are full
    await second.usage.save()
    assert read_usage(path).entities == ()


async def test_file_of_another_process_is_left_alone(path):
    gateway = Gateway(path)
    gateway.charge("etl", 100_000)
    gateway.usage._may_save = lambda: False
    await gateway.usage.save()
    assert not path.exists()
    assert gateway.usage.saves == {}


async def test_saves_repeat_without_blocking_the_loop(path, monkeypatch):
    gateway = Gateway(path)
    gateway.charge("etl", 100_000)
    loop, writes = asyncio.get_running_loop(), asyncio.Semaphore(0)

    def counting(*arguments):
        write_usage(*arguments)
        loop.call_soon_threadsafe(writes.release)

    monkeypatch.setattr(recent_usage, "write_usage", counting)
    task = asyncio.create_task(gateway.usage._run())
    async with asyncio.timeout(30):
        for _ in range(3):
            await writes.acquire()
    task.cancel()
    assert [use.tags.client_id for use in read_usage(path).entities] == ["etl"]


async def test_overlapping_saves_do_not_interfere(path, monkeypatch):
    """The last save, at the end of a drain, waits for the save of the cancelled task, and replaces its file."""
    gateway = Gateway(path)
    gateway.charge("etl", 100_000)
    loop, begun, may_write, written = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event(), []

    def slow(_path, _at, lines):
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(may_write.wait(), loop).result(30)
        written.append(len(lines))

    monkeypatch.setattr(recent_usage, "write_usage", slow)
    task = asyncio.create_task(gateway.usage.save())
    await begun.wait()
    task.cancel()
    gateway.charge("app", 100_000)
    last = asyncio.create_task(gateway.usage.save())
    await asyncio.sleep(0)
    may_write.set()
    await last
    assert written == [1, 2]


async def test_failed_save_is_logged_once_and_counted(path, caplog):
    caplog.set_level(logging.INFO)
    gateway = Gateway(path)
    gateway.charge("etl", 100_000)
    blocked = path.with_name(f"{path.name}.new")
    blocked.mkdir()
    await gateway.usage.save()
    await gateway.usage.save()
    blocked.rmdir()
    await gateway.usage.save()
    assert gateway.usage.saves == {"failure": 2, "success": 1}
    warning, again = caplog.messages
    assert "can't be saved" in warning
    assert f"Is a directory — remove the folder {blocked}" in warning
    assert again == "recent use is saved again"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "every client starts with a full burst"),
        (b'{"version": 9}\n', "has version 9"),
        (b'{"version": 1, "boot": "", "monotonic": 0, "wall": 0, "rows": 0}\n', "too long ago, or in the future"),
        (None, "can't be read"),
    ],
)
async def test_unusable_file_is_logged_and_gateway_starts(path, caplog, content, message):
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    gateway = Gateway(path)
    await gateway.usage.restore()
    (warning,) = caplog.messages
    assert message in warning
    assert str(path) in warning
    assert gateway.charge("etl", 10_000) == 0.0
    if content is not None:
        await gateway.usage.save()
        assert len(read_usage(path).entities) == 1


async def test_huge_number_costs_one_burst_and_no_start(path, caplog):
    first = Gateway(path)
    first.charge("etl", 100_000)
    await first.usage.save()
    saved = path.read_text()
    path.write_text(saved.replace('"token_bucket", 11', f'"token_bucket", {10**310}'))
    assert path.read_text() != saved
    second = Gateway(path)
    await second.usage.restore()
    assert second.charge("etl", 10_000) == 0.0
    assert "1 lines of" in caplog.text


async def test_damaged_lines_are_skipped_and_counted(path, caplog):
    first = Gateway(path)
    first.charge("etl", 100_000)
    first.charge("app", 100_000)
    await first.usage.save()
    path.write_bytes(path.read_bytes()[:-20])
    second = Gateway(path)
    await second.usage.restore()
    assert (second.charge("etl", 1_000) > 0.0, second.charge("app", 1_000) > 0.0) == (True, False)
    assert "1 lines of" in caplog.text
