"""The ledger topic without a broker: its bounds and its end."""

import asyncio
from contextlib import suppress

import pytest

from gateway.cluster.metadata import ClusterMetadata
from gateway.cluster.topic_log import TopicSpec
from gateway.features.ledger.ledger_topic import MAX_LINE_BYTES, MAX_WAITING_BYTES, LedgerTopic

HALF_A_MIB = "x" * MAX_LINE_BYTES
ROOM = MAX_WAITING_BYTES // MAX_LINE_BYTES


def topic_without_brokers() -> LedgerTopic:
    return LedgerTopic(ClusterMetadata(list).connect, TopicSpec("throttles"), "weir-1")


def test_lines_without_room_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    topic = topic_without_brokers()
    assert topic.publish([HALF_A_MIB] * (ROOM - 1)) == 0
    assert caplog.messages == []
    assert topic.publish([HALF_A_MIB] * 3) == 2
    assert topic.publish(["{}"]) == 1
    (message,) = caplog.messages
    assert "ledger.topic throttles: 2 lines were dropped" in message


def test_oversized_line_is_dropped() -> None:
    """Otherwise the publisher would retry it for ever and block later lines."""
    assert topic_without_brokers().publish([HALF_A_MIB + "x", "{}"]) == 1


def test_lines_wait_for_brokers_and_are_dropped_at_exit() -> None:
    async def scenario() -> int:
        topic = topic_without_brokers()
        assert topic.connected  # as far as is known
        task = asyncio.create_task(topic.run())
        topic.publish([HALF_A_MIB] * ROOM)
        await asyncio.sleep(0)  # it begins
        await asyncio.sleep(0)  # and has failed once
        assert not topic.connected
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return topic.publish(["{}"])

    assert asyncio.run(scenario()) == 1
