"""A pause answers Produce at once with a throttle time and mutes the client until the pause ends."""

import pytest

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.hostile.stub_broker import produce_outcome
from tests.hostile.usage_topic import FULL, ROOM, UsageTopic

MAX_DELAY_MS = 25_000
SOON_SECONDS = 10.0
NOT_ENOUGH_REPLICAS = 19


@pytest.fixture
def paused(broker, start_weir):
    """A gateway with paused producers, and the usage topic that can end the pause."""
    usage = UsageTopic(broker)
    usage.publish(FULL)
    settings = {"source": "topic", "freshness_seconds": 600, "max_delay_ms": MAX_DELAY_MS}
    weir = start_weir(broker.bootstrap_servers, quotas={"volumes": settings})
    weir.wait_for_volumes("PAUSE")
    return weir, usage


def check_refused(frame, correlation_id):
    assert int.from_bytes(frame[4:8], "big") == correlation_id
    assert produce_outcome(frame) == (NOT_ENOUGH_REPLICAS, MAX_DELAY_MS)


def test_pause_answers_at_once_and_its_end_unmutes(paused, broker, connect):
    weir, usage = paused
    client = connect(weir)
    requests = [m.produce(number, size=10_000) for number in range(1, 6)]  # together one segment of the loopback
    client.send(*requests)
    for number in range(1, 6):
        check_refused(client.receive(SOON_SECONDS), number)
    client.send(m.produce(6))
    assert client.receives_nothing(0.3)
    assert broker.count(ApiKey.PRODUCE) == 0
    usage.publish(ROOM)
    assert client.receive(SOON_SECONDS) == m.produced(6).replace((77).to_bytes(8, "big"), (7).to_bytes(8, "big"))


def test_pause_keeps_produce_without_acks(paused, broker, connect):
    weir, usage = paused
    client = connect(weir)
    client.send(m.produce(1, acks=0), m.produce(2, acks=0))
    assert client.receives_nothing(0.3)
    assert broker.count(ApiKey.PRODUCE) == 0
    usage.publish(ROOM)
    broker.wait_for(lambda: broker.count(ApiKey.PRODUCE) == 2, "both requests arrive")
