"""Records of the usage topic before the member receives them, without a broker."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gateway import clock
from gateway.background import BackgroundTasks
from gateway.cluster.metadata import ClusterMetadata
from gateway.cluster.record_batches import batches_of
from gateway.features.sharing.config import SharingConfig
from gateway.features.sharing.feature import MAX_WAITING_BYTES, Sharing
from gateway.features.sharing.known_peers import MAX_MEMBERS
from gateway.features.sharing.member import EXPIRY_INTERVALS
from gateway.features.sharing.use_message import EntityUse, UseMessage, encode, parse
from gateway.quotas.bucket import Bucket
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota, Tags
from gateway.quotas.meter import Window
from gateway.quotas.settings import QuotaSettings
from tests.gateway.cluster.kept_topic import KeptTopic
from tests.gateway.quotas.engines import bucket_of

CAPACITY = 10_000_000.0
WINDOW = Window(samples=11, seconds=600.0)
LIMIT = CAPACITY / 6_000
"""A limit so low that the refill during a test does not matter."""

OTHER = b"f" * 16


class Reader:
    """A gateway's sharing that receives records, and their bucket."""

    def __init__(self, connect: Callable[[], Any] | None = None) -> None:
        quota = EntityQuota(ClientQuotaEntity(user="alice"), {"producer_byte_rate": LIMIT})
        self.engine = QuotaEngine(QuotaSettings(quotas=(quota,), window=WINDOW), clock.monotonic(), shared=True)
        self.sharing = Sharing(SharingConfig(), connect or ClusterMetadata(list).connect, self.engine)

    async def __aenter__(self) -> "Reader":
        self._delivering = asyncio.create_task(self.sharing._deliver())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._delivering.cancel()

    async def fetch_ends(self) -> None:
        """Let the event loop turn until the member has all records."""
        self.sharing._fetch_ends()
        while self.sharing._due:  # noqa: ASYNC110 -- some turns of the event loop
            await asyncio.sleep(0)

    @property
    def bucket(self) -> Bucket:
        return bucket_of(self.engine, "produce", "alice", "any", clock.monotonic())

    def used(self) -> float:
        """Return the charges for peers' use, without the refill meanwhile."""
        meter = self.bucket.shared_meter()
        assert meter is not None
        return CAPACITY - (meter.tokens(clock.monotonic()) or 0.0)

    def read(self, sequence: int, total: int) -> None:
        self.sharing.on_record(OTHER, message(sequence, total), [])


def message(sequence: int, total: int) -> bytes:
    return encode(UseMessage(sequence, (EntityUse("produce", Tags("alice", None), total, total),)))


async def test_last_record_of_a_backlog_counts() -> None:
    async with Reader() as reader:
        reader.read(1, 1_000_000)
        await reader.fetch_ends()
        for sequence in range(2, 50):
            reader.read(sequence, sequence * 1_000_000)
        await reader.fetch_ends()
        assert reader.used() <= CAPACITY, "old use leaves no debt"
        assert reader.sharing.report().skipped == {}


async def test_pauses_within_a_backlog_do_not_divide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cluster.topic_log.TURN_SECONDS", 0.0)
    topic = KeptTopic()
    for sequence in range(1, 50):
        for batch, count in batches_of([(OTHER, message(sequence, sequence * 1_000_000))]):
            topic.append(batch, count)
    reader = Reader(topic.connect)
    async with BackgroundTasks(Counter()) as tasks:
        reader.sharing.start(tasks)
        while not reader.sharing.report().reachable:
            await reader.sharing._log.looked()
        assert reader.used() <= LIMIT, "its records do not show whether the member lives"
        assert reader.sharing.report().members == 1


async def test_member_that_left_before_the_start_counts_nothing() -> None:
    async with Reader() as reader:
        before = reader.used()
        for sequence in (1, 2, 3):
            reader.read(sequence, sequence * 1_000_000)
        await reader.fetch_ends()
        assert reader.used() == pytest.approx(before, abs=LIMIT)


async def test_entity_of_an_earlier_record_of_a_fetch_counts() -> None:
    async with Reader() as reader:
        reader.read(1, 0)
        reader.read(2, 0)
        await reader.fetch_ends()
        before = reader.used()
        reader.read(3, 5_000_000)
        reader.sharing.on_record(OTHER, encode(UseMessage(4, (EntityUse("produce", Tags("bob", None), 1, 1),))), [])
        await reader.fetch_ends()
        assert reader.used() - before > 4_500_000


async def test_all_records_of_a_short_gap_count() -> None:
    """As many as a peer sends before it expires, for example after an error of the reader, which takes a second."""
    async with Reader() as reader:
        for sequence in (1, 2):
            reader.read(sequence, 0)
            await reader.fetch_ends()
        before = reader.used()
        reader.read(3, 5_000_000)
        for sequence in range(4, 4 + EXPIRY_INTERVALS):
            use = EntityUse("produce", Tags("bob", None), sequence, sequence)
            reader.sharing.on_record(OTHER, encode(UseMessage(sequence, (use,))), [])
        await reader.fetch_ends()
        assert reader.used() - before > 4_500_000


async def test_last_record_counts_before_tombstone() -> None:
    async with Reader() as reader:
        for sequence in (1, 2):
            reader.read(sequence, 1_000_000)
            await reader.fetch_ends()
        before = reader.used()
        reader.read(3, 4_000_000)
        reader.sharing.on_record(OTHER, None, [])
        await reader.fetch_ends()
        assert reader.used() - before > 2_500_000
        assert reader.sharing.report().entities == 0


async def test_topic_of_foreign_keys_takes_no_memory() -> None:
    async with Reader() as reader:
        for number in range(3 * MAX_MEMBERS):
            reader.sharing.on_record(str(number).encode(), b"{}", [])
        await reader.fetch_ends()
        assert reader.sharing.report().skipped == {"bad_key": MAX_MEMBERS - 2, "too_many_members": 2 * (MAX_MEMBERS + 1)}


def flood(reader: Reader) -> None:
    """Records of more members than a gateway remembers at once."""
    for number in range(MAX_MEMBERS + 1):
        reader.sharing.on_record(f"{number:016x}".encode(), encode(UseMessage(1, ())), [])


async def test_flood_of_members_divides_no_backlog() -> None:
    async with Reader() as reader:
        before = reader.used()
        for sequence in range(1, 5):
            reader.read(sequence, sequence * 10_000_000)
            flood(reader)
        await reader.fetch_ends()
        assert reader.used() == pytest.approx(before, abs=LIMIT), "it may have left long ago"
        assert reader.sharing.member.peers() == []
        assert reader.sharing.report().skipped == {"too_many_members": 4 * (MAX_MEMBERS + 1)}


async def test_large_messages_divide_no_backlog() -> None:
    async with Reader() as reader:
        before = reader.used()
        use = EntityUse("produce", Tags("x" * 32_000, None), 1, 1)
        large = encode(UseMessage(1, (use,) * 15))
        for sequence in range(1, 5):
            reader.read(sequence, sequence * 10_000_000)
            for number in range(MAX_WAITING_BYTES // len(large) + 1):
                reader.sharing.on_record(f"{number:016x}".encode(), large, [])
        await reader.fetch_ends()
        assert reader.used() == pytest.approx(before, abs=LIMIT)


async def test_living_members_are_heard_in_a_flood() -> None:
    async with Reader() as reader:
        for sequence in (1, 2):
            reader.read(sequence, 0)
            await reader.fetch_ends()
        before = reader.used()
        for sequence in (3, 4):
            reader.read(sequence, sequence * 1_000_000)
            own = UseMessage(sequence, ())
            reader.sharing.on_record(reader.sharing.member.identity.encode(), encode(own), [])
            flood(reader)
        await reader.fetch_ends()
        assert reader.used() - before > 3_500_000
        await reader.sharing._step(clock.monotonic())
        assert reader.sharing.report().reachable, "its own records are among them"


@pytest.mark.parametrize("broken", ["publish", "run"])
async def test_unexpected_error_repeats_lost_use(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher itself fails, or it is cancelled because the reader of the topic fails."""
    monkeypatch.setattr("gateway.background.FIRST_SECONDS", 0.0)
    reader = Reader()
    published = asyncio.Queue[UseMessage]()
    lost, failed = asyncio.Event(), asyncio.Event()

    async def publish(records: list[tuple[bytes, bytes]]) -> None:
        message = parse(records[0][1])
        if failed.is_set():
            published.put_nowait(message)
        elif message.entities:
            lost.set()
            if broken == "run":
                await asyncio.Event().wait()
            failed.set()
            raise RuntimeError("a bug")

    async def run() -> None:
        await (failed if failed.is_set() else lost).wait()
        if broken == "publish" or failed.is_set():
            await asyncio.Event().wait()
        failed.set()
        raise RuntimeError("a bug")

    log = reader.sharing._log
    monkeypatch.setattr(log, "publish", publish)
    monkeypatch.setattr(log, "run", run)
    bucket = reader.bucket
    restarts = Counter[str]()
    async with asyncio.timeout(20), BackgroundTasks(restarts) as tasks:
        bucket.charge(1_000, clock.monotonic())
        reader.sharing.start(tasks)
        uses = (await published.get()).entities
    assert [use.total for use in uses] == [1_000]
    assert sum(restarts.values()) == 1


async def test_stop_right_after_a_step_publishes_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader()
    published: list[tuple[bytes, bytes | None]] = []

    async def publish(records: list[tuple[bytes, bytes | None]]) -> None:
        published.extend(records)

    monkeypatch.setattr(reader.sharing._log, "publish", publish)
    reader.bucket.charge(1_000, clock.monotonic())
    await reader.sharing._step(clock.monotonic())
    assert not published
    await reader.sharing.stop()
    (_, message), (_, tombstone) = published
    assert [use.total for use in parse(message or b"").entities] == [1_000]
    assert tombstone is None
