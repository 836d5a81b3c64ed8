"""In a storm of short connections, clients take turns on connections to the broker, and none notices those before it."""

import itertools

import pytest

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.hostile.test_reconnecting import shared
from tests.weir_process import wait_until

REUSED = "weir_broker_connections_reused_total"
ENOUGH = 100


def silent_to(number):
    """A broker's answers to Produce, without one to the request of this number."""
    return lambda request: None if request.correlation_id == number else m.produced(request.correlation_id)


def honest_client(connect, weir, number):
    """A client with one Produce. It closes once it has its answer."""
    with connect(weir) as client:
        assert client.ask(m.produce(number))[0] == m.produced(number)


def test_clients_take_turns_on_connections(broker, start_weir, connect):
    broker.answers[ApiKey.PRODUCE] = silent_to(0)
    weir = start_weir(broker.bootstrap_servers)
    numbers = itertools.count(1)

    def enough():
        for _ in range(ENOUGH):
            honest_client(connect, weir, next(numbers))
        return weir.metric(REUSED) >= ENOUGH

    wait_until(enough, "clients have got kept connections")
    produced = [request.correlation_id for request in broker.received if request.api_key == ApiKey.PRODUCE]
    assert produced == list(range(1, next(numbers))), "each request arrived once, in order"
    assert broker.connections <= next(numbers) - ENOUGH


BAD_ENDS = {
    "acks=0": lambda number: m.produce(number, acks=0),
    "half a request": lambda number: m.produce(number)[:-1],
    "no answer": m.produce,
    "share session": m.share_fetch,
}


@pytest.mark.parametrize("end", BAD_ENDS)
def test_connection_with_state_gets_no_other_client(broker, start_weir, connect, end):
    broker.answers |= {ApiKey.PRODUCE: silent_to(0), ApiKey.SHARE_FETCH: shared}
    weir = start_weir(broker.bootstrap_servers)
    numbers = itertools.count(1)

    def enough():
        for _ in range(ENOUGH // 2):
            number = next(numbers)
            honest_client(connect, weir, number)
            with connect(weir) as rude:
                rude.ask(m.produce(next(numbers)))
                rude.send(BAD_ENDS[end](0))
                if end == "share session":
                    rude.receive()
        return weir.metric(REUSED) >= ENOUGH

    wait_until(enough, "clients have got kept connections")
    ended = set()
    for request in broker.received:
        assert request.connection not in ended
        if request.correlation_id == 0 and request.api_key in {ApiKey.PRODUCE, ApiKey.SHARE_FETCH}:
            ended.add(request.connection)
