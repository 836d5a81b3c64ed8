"""The ledger topic without a broker: its bounds and its end."""

import asyncio
import fcntl
from contextlib import suppress
from pathlib import Path

import pytest

from gateway import clock
from gateway.cluster.client import ClusterError, TooLargeError
from gateway.cluster.metadata import ClusterMetadata
from gateway.cluster.record_batches import Record
from gateway.cluster.topic_spec import TopicSpec
from gateway.events import LINE_HEADER
from gateway.features.ledger.ledger_topic import MAX_LINE_BYTES, MAX_WAITING_BYTES, LedgerTopic

HALF_A_MIB = "x" * MAX_LINE_BYTES
ROOM = MAX_WAITING_BYTES // MAX_LINE_BYTES


def topic_without_brokers(folder: Path = Path("no-folder"), topic: str = "throttles") -> LedgerTopic:
    return LedgerTopic(ClusterMetadata(list).connect, TopicSpec(topic), "weir-1", folder)


def filled(topic: LedgerTopic) -> LedgerTopic:
    """The topic with a full queue."""
    for _ in range(ROOM):
        topic.publish(HALF_A_MIB)
    assert topic.dropped == 0
    return topic


def test_lines_without_room_are_dropped_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    topic = filled(topic_without_brokers())
    assert caplog.messages == []
    topic.publish(HALF_A_MIB)
    topic.publish("{}")
    assert topic.dropped == 2
    (message,) = caplog.messages
    assert f"ledger.topic throttles: lines are dropped while the queue is full ({MAX_WAITING_BYTES} bytes" in message


def test_oversized_line_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the publisher would retry it for ever and block later lines."""
    topic = topic_without_brokers()
    topic.publish(HALF_A_MIB + "x")
    topic.publish("{}")
    assert topic.dropped == 1
    assert f"a line of {MAX_LINE_BYTES + 1} bytes is dropped" in caplog.text


def test_lines_wait_for_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> int:
        topic = topic_without_brokers()
        assert topic.connected  # as far as is known
        failed, publish = asyncio.Event(), topic._log.publish

        async def try_to_publish(records: list[Record]) -> None:
            try:
                await publish(records)
            finally:
                failed.set()

        monkeypatch.setattr(topic._log, "publish", try_to_publish)
        task = asyncio.create_task(topic.run())
        filled(topic)
        async with asyncio.timeout(30.0):
            await failed.wait()
        assert not topic.connected
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        topic.publish("{}")
        return topic.dropped

    assert asyncio.run(scenario()) == 1


class Limited:
    """The place of a TopicLog whose topic has a `max.message.bytes` of 50 000."""

    def __init__(self, topic: LedgerTopic, monkeypatch: pytest.MonkeyPatch) -> None:
        self.limit = 50_000
        self.batches: list[list[int]] = []
        monkeypatch.setattr(topic._log, "publish", self.publish)

    async def publish(self, records: list[tuple[bytes, bytes, tuple[str, bytes]]]) -> None:
        sizes = [len(value) for _, value, _ in records]
        if sum(sizes) > self.limit:
            raise TooLargeError("throttles-0: MessageSizeTooLargeError (10)")
        self.batches.append(sizes)


async def test_batches_follow_the_limit_of_the_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_without_brokers()
    log = Limited(topic, monkeypatch)
    for size in (20_000, 20_000, 60_000, 30_000):
        topic.publish("x" * size)
    await topic._send(topic._waiting)
    assert [size for batch in log.batches for size in batch] == [20_000, 20_000, 30_000]
    assert "a line of 60000 bytes is dropped, because the broker refuses it" in caplog.text


async def test_line_that_the_broker_refuses_counts_as_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topic_without_brokers()
    Limited(topic, monkeypatch)
    for size in (60_000, 20_000, 60_000):
        topic.publish("x" * size)
    await topic._send(topic._waiting)
    assert topic.dropped == 2


async def test_batches_grow_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator has raised the limit of the topic in the meantime."""
    now = 1_000.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    topic = topic_without_brokers()
    log = Limited(topic, monkeypatch)
    for seconds, batches in ((0.0, 4), (599.0, 4), (1.0, 1)):
        now += seconds
        log.batches.clear()
        for _ in range(4):
            topic.publish("x" * 40_000)
        await topic._send(topic._waiting)
        assert len(log.batches) == batches
        log.limit = 1_000_000


LAST = "{}"


class Sink:
    """The place of a TopicLog. After `room` records the brokers do not answer. It appends the last batch all the same."""

    def __init__(self, topic: LedgerTopic, monkeypatch: pytest.MonkeyPatch, room: int = 1_000) -> None:
        self.room = room
        self.records: list[tuple[str, str, str]] = []
        self.asked, self.got_last = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(topic._log, "publish", self.publish)

    async def publish(self, records: list[Record]) -> None:
        for key, value, (name, line_id) in records:
            assert name == LINE_HEADER
            self.records.append((key.decode(), value.decode(), line_id.decode()))
        self.asked.set()
        if len(self.records) > self.room:
            raise ClusterError("no answer")
        if self.values[-1] == LAST:
            self.got_last.set()

    @property
    def values(self) -> list[str]:
        return [value for _, value, _ in self.records]


def line(number: int) -> str:
    return f'{{"v":1,"time_ms":{number * 1000}}}'


def ended_with(folder: Path, count: int, topic: str = "throttles") -> LedgerTopic:
    """A topic that has ended with lines that no broker has confirmed."""
    ended = topic_without_brokers(folder, topic)
    for number in range(1, count + 1):
        ended.publish(line(number))
    ended.end()
    return ended


def saved(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def begin(topic: LedgerTopic, sink: Sink) -> None:
    """Run the topic until it has sent the lines of earlier processes and one line of its own."""
    topic.publish(LAST)
    await run_until(topic, sink.got_last)


async def run_until(topic: LedgerTopic, event: asyncio.Event) -> None:
    running = asyncio.create_task(topic.run())
    async with asyncio.timeout(30.0):
        await event.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_next_start_sends_lines_of_ended_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_with(tmp_path, 3)
    topic = topic_without_brokers(tmp_path)
    sink = Sink(topic, monkeypatch)
    await begin(topic, sink)
    assert sink.values == [line(1), line(2), line(3), LAST]
    assert {key for key, _, _ in sink.records} == {"weir-1"}
    assert saved(tmp_path) == []


async def test_unconfirmed_line_keeps_its_id_at_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker may have the line, and readers recognise the second one."""
    ended, topic = topic_without_brokers(tmp_path), topic_without_brokers(tmp_path)
    before, after = Sink(ended, monkeypatch, room=1), Sink(topic, monkeypatch)
    for number in (1, 2, 3):
        ended.publish(line(number))
        with suppress(ClusterError):
            await ended._send(ended._waiting)
    ended.end()
    await begin(topic, after)
    ids = {value: line_id for _, value, line_id in before.records}
    assert after.values == [line(2), line(3), LAST]
    assert {value: line_id for _, value, line_id in after.records[:2]} == {number: ids[number] for number in (line(2), line(3))}


def test_lines_that_wait_at_exit_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert ended_with(tmp_path, 3).dropped == 0
    (file,) = tmp_path.iterdir()
    size = sum(len(line(number)) for number in (1, 2, 3))
    lacks = f"ledger.topic throttles lacks 3 lines ({size} bytes, the first of 1970-01-01T00:00:01.000Z)"
    assert caplog.messages == [f"{lacks}; the next start sends them from {file}"]


def test_lines_that_cannot_be_saved_count_as_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "file"
    folder.touch()
    assert ended_with(folder, 3).dropped == 3
    assert "lacks 3 lines" in caplog.text
    assert "because they can't be saved: [Errno 17] File exists" in caplog.text


@pytest.mark.parametrize(
    "content", [b"", b"nonsense\n", b'{"topic":"throttles","gateway":1,"source":1,"number":"","lines":1}\n']
)
async def test_damaged_unsent_file_delays_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    file = tmp_path / "_unsent-0.jsonl"
    file.write_bytes(content)
    topic = topic_without_brokers(tmp_path)
    sink = Sink(topic, monkeypatch)
    await begin(topic, sink)
    assert sink.values == [LAST]
    assert f"{file} can't be sent: " in caplog.text


async def test_unsent_lines_of_another_topic_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_with(tmp_path, 1, topic="other")
    topic = topic_without_brokers(tmp_path)
    sink = Sink(topic, monkeypatch)
    await begin(topic, sink)
    assert sink.values == [LAST]
    assert len(saved(tmp_path)) == 1


async def test_one_gateway_alone_sends_an_unsent_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_with(tmp_path, 1)
    (file,) = saved(tmp_path)
    topic = topic_without_brokers(tmp_path)
    sink = Sink(topic, monkeypatch)
    with file.open("rb+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        await begin(topic, sink)
    assert sink.values == [LAST]


async def test_unsent_file_stays_until_it_is_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_with(tmp_path, 3)
    topic = topic_without_brokers(tmp_path)
    sink = Sink(topic, monkeypatch, room=0)
    await run_until(topic, sink.asked)
    topic.end()
    assert len(saved(tmp_path)) == 1
