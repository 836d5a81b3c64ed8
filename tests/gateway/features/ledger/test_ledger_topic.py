"""The ledger topic without a broker: its bounds and its end."""

import asyncio
from contextlib import suppress

import pytest

from gateway import clock
from gateway.cluster.client import TooLargeError
from gateway.cluster.metadata import ClusterMetadata
from gateway.cluster.topic_log import TopicSpec
from gateway.features.ledger.ledger_topic import MAX_LINE_BYTES, MAX_WAITING_BYTES, LedgerTopic

HALF_A_MIB = "x" * MAX_LINE_BYTES
ROOM = MAX_WAITING_BYTES // MAX_LINE_BYTES


def topic_without_brokers() -> LedgerTopic:
    return LedgerTopic(ClusterMetadata(list).connect, TopicSpec("throttles"), "weir-1")


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


def test_lines_wait_for_brokers_and_are_dropped_at_exit() -> None:
    async def scenario() -> int:
        topic = topic_without_brokers()
        assert topic.connected  # as far as is known
        task = asyncio.create_task(topic.run())
        filled(topic)
        await asyncio.sleep(0)  # it begins
        await asyncio.sleep(0)  # and has failed once
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
    await topic._send()
    assert [size for batch in log.batches for size in batch] == [20_000, 20_000, 30_000]
    assert "a line of 60000 bytes is dropped, because the broker refuses it" in caplog.text


async def test_line_that_the_broker_refuses_counts_as_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topic_without_brokers()
    Limited(topic, monkeypatch)
    for size in (60_000, 20_000, 60_000):
        topic.publish("x" * size)
    await topic._send()
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
        await topic._send()
        assert len(log.batches) == batches
        log.limit = 1_000_000
