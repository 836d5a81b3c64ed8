"""A flood of small requests: the brokers get the burst and then the rate, however many connections send it."""

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


def beat(request: Request) -> bytes:
    return request.answer()


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
    seconds = time.monotonic() - began
    assert seconds > 1.0
    assert broker.count(api) <= BURST + RATE * (seconds + 1.0)


def test_new_connections_wait_for_the_debt(broker, start_weir, connect):
    """Each of 40 new connections sends three requests, and none of them reaches the broker while the rate is in debt."""
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS)
    began = time.monotonic()
    for _ in range(40):
        connect(weir).send(*map(m.metadata, range(3)))
    wait_until(lambda: weir.metric("weir_muted_connections") >= 20, "the connections are muted")
    for _ in range(40):
        with connect(weir) as client:
            client.send(m.metadata(1))
    seconds = time.monotonic() - began
    assert broker.count(ApiKey.METADATA) <= BURST + RATE * (seconds + 1.0)
    assert broker.count(ApiKey.METADATA) >= BURST
