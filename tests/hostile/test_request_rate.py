"""A flood of small requests: the brokers get the burst and then the rate, however many connections send it.

Connections that keep members in groups get a little more, and their sender cannot use that for anything else.
"""

import time

import pytest

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.hostile.stub_broker import Request
from tests.weir_process import wait_until

RATE = 5
BURST = 10 * RATE
QUOTAS = {"entities": [{"client-id": "etl", "request_rate": RATE}]}
FLOODS = {
    "metadata": (ApiKey.METADATA, m.metadata),
    "produce": (ApiKey.PRODUCE, m.produce),
    "heartbeat": (ApiKey.HEARTBEAT, m.heartbeat),
}


MEMBERS = 10


def beat(request: Request) -> bytes:
    return request.answer()


def unknown_member(request: Request) -> bytes:
    return request.answer(error_code=25)


@pytest.mark.parametrize("flood", FLOODS)
def test_broker_gets_requests_at_the_rate(flood, broker, start_weir, connect):
    api, ask = FLOODS[flood]
    broker.answers[ApiKey.HEARTBEAT] = beat
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS)
    began = time.monotonic()
    client = connect(weir)
    client.send(*map(ask, range(1_000)))
    for _ in range(BURST + 2 * RATE):
        client.receive()
    count = broker.count(api)
    seconds = time.monotonic() - began
    assert seconds > 1.0
    free = seconds + 1.0 if flood == "heartbeat" else 0.0  # a member's heartbeat costs nothing once a second
    assert count <= BURST + RATE * (seconds + 1.0) + free


def test_new_connections_wait_for_the_debt(broker, start_weir, connect):
    """Each of 40 new connections sends three requests, and none of them reaches the broker while the rate is in debt."""
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS)
    began = time.monotonic()
    for _ in range(40):
        connect(weir).send(*map(m.metadata, range(3)))
    wait_until(lambda: weir.metric("weir_muted_connections") >= 20, "the connections are muted")
    broker.wait_for(lambda: broker.count(ApiKey.METADATA) >= BURST, "the burst arrives")
    for _ in range(40):
        with connect(weir) as client:
            client.send(m.metadata(1))
    count = broker.count(ApiKey.METADATA)
    seconds = time.monotonic() - began
    assert count <= BURST + RATE * (seconds + 1.0)


def test_refused_heartbeats_gain_nothing(broker, start_weir, connect):
    """Connections that only pretend to be members get the rate, and ten first requests a second."""
    broker.answers[ApiKey.HEARTBEAT] = unknown_member
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS)
    began = time.monotonic()
    for _ in range(MEMBERS):
        connect(weir).send(m.heartbeat(0), *map(m.metadata, range(1, 200)))
    broker.wait_for(lambda: broker.count(ApiKey.METADATA) >= BURST + RATE, "the burst is used up")
    count = broker.count(ApiKey.METADATA)
    seconds = time.monotonic() - began
    assert count <= BURST + RATE * (seconds + 1.0)
    assert broker.count(ApiKey.HEARTBEAT) <= MEMBERS


def test_flood_of_members_is_bounded_and_keeps_its_debt(broker, start_weir, connect):
    """Real members flood on connections that spare them: each gets two requests a second at most, all others none."""
    broker.answers[ApiKey.HEARTBEAT] = beat
    rate = 1
    burst = 10 * rate
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": [{"client-id": "etl", "request_rate": rate}]})
    other = connect(weir)
    other.ask(m.metadata(0))
    began = time.monotonic()
    for number in range(1, MEMBERS + 1):
        connect(weir).send(m.heartbeat(0), *map(m.metadata, range(number, 1_000)))
    broker.wait_for(lambda: broker.count(ApiKey.METADATA) >= burst + 40, "the members are far over the rate")
    count = broker.count(ApiKey.METADATA)
    seconds = time.monotonic() - began
    assert count <= burst + rate * (seconds + 1.0) + MEMBERS * 2.0 * (seconds + 1.0)
    assert weir.metric("weir_member_mutes_total") >= MEMBERS
    before = broker.count(ApiKey.METADATA)
    stranger = connect(weir)
    stranger.send(m.metadata(7))
    other.ask(m.metadata(1))
    other.send(m.metadata(2))
    broker.wait_for(lambda: broker.count(ApiKey.METADATA) >= before + MEMBERS, "the members go on")
    assert stranger.receives_nothing(0.1)
    assert other.receives_nothing(0.1)


def test_member_cannot_escape_its_byte_rate(broker, start_weir, connect):
    rate, size = 1_000, 1_000
    broker.answers[ApiKey.HEARTBEAT] = beat
    entity = {"client-id": "etl", "request_rate": RATE, "producer_byte_rate": rate}
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": [entity]})
    client = connect(weir)
    began = time.monotonic()
    client.ask(m.heartbeat(0))
    for number in range(200):
        client.send(m.produce(number, size=size), m.heartbeat(number))
    broker.wait_for(lambda: broker.count(ApiKey.PRODUCE) >= 13, "the burst of bytes is used up")
    count = broker.count(ApiKey.PRODUCE)
    seconds = time.monotonic() - began
    assert count * size <= 10 * rate + rate * (seconds + 1.0)
