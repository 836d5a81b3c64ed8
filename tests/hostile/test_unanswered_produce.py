"""Produce with acks=0 under topic quotas: its bytes count, whatever its client and its broker do behind it."""

from functools import partial

import pytest

from gateway.proxy.in_flight import MAX_IN_FLIGHT
from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.hostile.stub_broker import TOPIC, produced
from tests.weir_process import wait_until

QUOTAS = {"topics": {"total.bytes.in.per.sec.threshold": 1_000_000, "bytes.in.per.sec.threshold": {}}}
RECORDS = len(b"some records")
NOT_LEADER = 6


@pytest.fixture
def weir(broker, start_weir):
    return start_weir(broker.bootstrap_servers, quotas=QUOTAS)


@pytest.fixture
def counted(weir):
    """Waits until that many bytes of the broker's topic are counted."""
    metric = partial(weir.metric, "weir_topic_bytes_total", topic=TOPIC)
    return lambda size: wait_until(lambda: metric() == size, f"{size} bytes are counted")


@pytest.mark.parametrize("leave", ["close", "reset"])
def test_request_of_a_client_that_leaves_at_once_counts(leave, broker, connect, weir, counted):
    client = connect(weir)
    client.send(m.produce(1, acks=0), m.produce(2, acks=0))
    broker.wait_for(lambda: broker.count(ApiKey.PRODUCE) == 2, "the requests arrive")
    getattr(client, leave)()
    counted(2 * RECORDS)


def test_broker_that_closes_behind_a_request_has_answered_it(connect, weir, counted):
    """The stub closes the connection for a Heartbeat, as brokers do for a malformed request."""
    client = connect(weir)
    client.send(m.produce(1, acks=0), m.heartbeat(2))
    assert client.is_closed()
    counted(RECORDS)


def test_error_of_the_broker_ends_the_connection(broker, connect, weir):
    failed = [{"name": TOPIC, "partition_responses": [{"index": 0, "error_code": NOT_LEADER, "base_offset": -1}]}]
    broker.answers[ApiKey.PRODUCE] = lambda request: request.answer(responses=failed)
    client = connect(weir)
    client.send(m.produce(1, acks=0))
    assert client.is_closed()
    wait_until(lambda: "the broker refuses a partition (NOT_LEADER_OR_FOLLOWER)" in weir.log(), "the reason is logged")


def test_broker_that_never_answers_gets_a_bounded_number(broker, connect, weir, counted):
    broker.answers[ApiKey.PRODUCE] = lambda request: None
    client = connect(weir)
    client.send(*(m.produce(number, acks=0) for number in range(3 * MAX_IN_FLIGHT)))
    broker.wait_for(lambda: broker.count(ApiKey.PRODUCE) == MAX_IN_FLIGHT + 1, "the first requests arrive")
    assert client.receives_nothing(0.2)
    assert broker.count(ApiKey.PRODUCE) == MAX_IN_FLIGHT + 1
    broker.answers[ApiKey.PRODUCE] = produced
    broker.send(b"".join(produced(request) or b"" for request in broker.received if request.api_key == ApiKey.PRODUCE))
    counted(3 * MAX_IN_FLIGHT * RECORDS)
