"""The ledger topic without a broker: its bounds and its end."""

import asyncio
from contextlib import suppress

import pytest

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
    assert all(topic.publish(HALF_A_MIB) for _ in range(ROOM))
    return topic


def test_lines_without_room_are_dropped_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    topic = filled(topic_without_brokers())
    assert caplog.messages == []
    assert not topic.publish(HALF_A_MIB)
    assert not topic.publish("{}")
    (message,) = caplog.messages
    assert f"ledger.topic throttles: lines are dropped while the queue is full ({MAX_WAITING_BYTES} bytes" in message


def test_oversized_line_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the publisher would retry it for ever and block later lines."""
    topic = topic_without_brokers()
    assert not topic.publish(HALF_A_MIB + "x")
    assert topic.publish("{}")
    assert f"a line of {MAX_LINE_BYTES + 1} bytes is dropped" in caplog.text


def test_lines_wait_for_brokers_and_are_dropped_at_exit() -> None:
    async def scenario() -> bool:
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
        return topic.publish("{}")

    assert not asyncio.run(scenario())


async def test_batches_follow_the_limit_of_the_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`max.message.bytes` of the topic is 50 000 here."""
    topic = topic_without_brokers()
    sent: list[int] = []

    async def publish(records: list[tuple[bytes, bytes, tuple[str, bytes]]]) -> None:
        if sum(len(value) for _, value, _ in records) > 50_000:
            raise TooLargeError("throttles-0: MessageSizeTooLargeError (10)")
        sent.extend(len(value) for _, value, _ in records)

    monkeypatch.setattr(topic._log, "publish", publish)
    for size in (20_000, 20_000, 60_000, 30_000):
        assert topic.publish("x" * size)
    await topic._send()
    assert sent == [20_000, 20_000, 30_000]
    assert "a line of 60000 bytes is dropped, because the broker refuses it" in caplog.text
