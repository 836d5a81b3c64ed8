"""Members of a group under a rate of requests that is far too small for their client keep their partitions."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition

from loadtest.testkit.kafka import KafkaCluster
from protocol.api_keys import ApiKey
from tests.broker.topics import create_topic
from tests.hostile.raw_client import RawClient
from tests.protocol import codec
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

CLIENT = "member"
SESSION_SECONDS = 15
PARTITIONS = 2
FLOODS = 60
HEARTBEATS = 8
"""Two members send these in about 20 s. Their session timeout is shorter."""


def limited(rate: int) -> dict[str, Any]:
    return {"entities": [{"client-id": CLIENT, "request_rate": rate}]}


def metadata(number: int) -> bytes:
    return codec.encode_request(ApiKey.METADATA, 12, {"topics": []}, number, CLIENT)


class Member:
    """A consumer that counts its rebalances and commits after each poll."""

    def __init__(self, gateway: Weir, topic: str, group: str) -> None:
        self.rebalances = 0
        self._topic = topic
        self._committed = 0
        self.consumer = Consumer(
            {
                "bootstrap.servers": gateway.bootstrap_servers,
                "client.id": CLIENT,
                "group.id": group,
                "session.timeout.ms": SESSION_SECONDS * 1000,
                "heartbeat.interval.ms": SESSION_SECONDS * 1000 // 3,
                "enable.auto.commit": False,
            }
        )
        self.consumer.subscribe([topic], on_assign=self._count, on_revoke=self._count, on_lost=self._count)

    def _count(self, *_: object) -> None:
        self.rebalances += 1

    def assigned(self) -> list[TopicPartition]:
        """Poll, and return the partitions of the member."""
        self.consumer.poll(0.1)
        return self.consumer.assignment()

    def commit(self) -> None:
        self._committed += 1
        offsets = [TopicPartition(each.topic, each.partition, self._committed) for each in self.assigned()]
        # Without a wait for the answer, the commits would pile up in the client, in front of its heartbeats.
        self.consumer.commit(offsets=offsets, asynchronous=False)


def test_members_outlive_a_debt_longer_than_their_session(kafka: KafkaCluster, start_weir: Callable[..., Weir]) -> None:
    topic = create_topic(kafka.bootstrap_servers, f"members-{uuid4().hex[:8]}", PARTITIONS)
    weir = start_weir(kafka.bootstrap_servers, quotas=limited(1_000))
    with ExitStack() as opened:
        floods = [opened.enter_context(RawClient(weir.bootstrap_servers)) for _ in range(FLOODS)]
        for flood in floods:
            flood.ask(metadata(0))
        members = [Member(weir, topic, topic) for _ in range(PARTITIONS)]
        for member in members:
            opened.callback(member.consumer.close)
        wait_until(lambda: [len(each.assigned()) for each in members] == [1] * PARTITIONS, "each member has a partition")
        weir.apply(quotas=limited(2))
        for flood in floods:
            flood.send(*map(metadata, range(1, 30)))

        def debt() -> float:
            rows = [row for row in weir.usage() if row["kind"] == "request_rate"]
            return max((row["throttle_left"] for row in rows), default=0.0)

        wait_until(lambda: debt() > 2 * SESSION_SECONDS, "the debt is longer than a session")
        rebalances = [member.rebalances for member in members]
        before = weir.metric("weir_requests_total", api="Heartbeat")

        def heartbeats_came() -> bool:
            for member in members:
                member.commit()
            return weir.metric("weir_requests_total", api="Heartbeat") >= before + HEARTBEATS

        wait_until(heartbeats_came, "the members' heartbeats come through", timeout=150)
        assert [member.rebalances for member in members] == rebalances
        assert debt() > 2 * SESSION_SECONDS
        assert weir.metric("weir_member_mutes_total") > 0
