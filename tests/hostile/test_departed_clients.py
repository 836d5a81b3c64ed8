"""Clients that leave while their requests wait for a quota: nobody waits for these requests, and the broker never sees them."""

import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.hostile.test_forgiven_debt import forgive
from tests.weir_process import wait_until

QUOTAS = {"entities": [{"client-id": "etl", "producer_byte_rate": 1024}]}


@pytest.fixture
def indebted(broker, start_weir, connect):
    """A gateway whose only client has an open, muted connection and owes a quarter of an hour."""
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS)
    connect(weir).ask(m.produce(1, size=1_000_000))
    return weir


def waiting(weir, connect, request):
    """A further connection whose first request waits."""
    muted = weir.metric("weir_muted_connections")
    client = connect(weir)
    client.send(request)
    wait_until(lambda: weir.metric("weir_muted_connections") == muted + 1, "the client is muted")
    return client


@pytest.mark.parametrize("leave", ["close", "reset"])
def test_waiting_request_of_a_departed_client_is_dropped(leave, indebted, broker, connect):
    getattr(waiting(indebted, connect, m.produce(2)), leave)()
    wait_until(lambda: indebted.metric("weir_connections") == 1, "its place is free")
    assert forgive(indebted, "--client-id", "etl").returncode == 0
    connect(indebted).ask(m.produce(3))
    assert broker.count(ApiKey.PRODUCE) == 2


def test_departed_client_pays_nothing_for_a_large_request(indebted, broker, connect):
    """The kernel has all of its request, and more than a gateway's buffer. So the end of the connection stands behind it."""
    waiting(indebted, connect, m.produce(2, size=1_000_000)).close()
    assert forgive(indebted, "--client-id", "etl").returncode == 0
    wait_until(lambda: indebted.metric("weir_connections") == 1, "its place is free")
    assert broker.count(ApiKey.PRODUCE) == 1
    assert [row["throttle_left"] for row in indebted.usage() if row["kind"] == "produce"] == [0.0]


def test_muted_client_that_leaves_frees_its_place(indebted, broker, connect):
    client = waiting(indebted, connect, m.produce(2))
    assert forgive(indebted, "--client-id", "etl").returncode == 0
    client.receive()
    client.ask(m.produce(3, size=1_000_000))
    client.send(m.produce(4))
    client.close()
    wait_until(lambda: indebted.metric("weir_connections") == 1, "its place is free")
    assert broker.count(ApiKey.PRODUCE) == 3


def test_waiting_request_without_an_answer_outlives_its_client(indebted, broker, connect):
    waiting(indebted, connect, m.produce(2, acks=0)).close()
    waiting(indebted, connect, m.produce(3)).close()
    wait_until(lambda: indebted.metric("weir_connections") == 2, "only the other client's place is free")
    assert forgive(indebted, "--client-id", "etl").returncode == 0
    wait_until(lambda: broker.count(ApiKey.PRODUCE) == 2, "the broker has the request")


CLOSE_WAIT = "08"


def has_come(weir, state):
    """True if a connection to the gateway's bootstrap port is in this state (proc_pid_net(5))."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{weir.ports[0]:04X}") and row[3] == state for row in rows)


def test_client_that_left_before_its_mute_frees_its_place(start_weir, connect):
    """The client's first request waits for a broker that does not accept. Its end has come before the mute then."""
    with ExitStack() as open_:
        broker = open_.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = broker.getsockname()
        others = [open_.enter_context(socket.socket()) for _ in range(4)]  # they fill the broker's queue
        for other in others:
            other.setblocking(False)
            other.connect_ex(address)
        weir = start_weir(f"127.0.0.1:{address[1]}", quotas=QUOTAS, wait="/livez")
        client = connect(weir)
        client.send(m.produce(1, size=90_000), m.produce(2))
        client.close()
        wait_until(lambda: has_come(weir, CLOSE_WAIT), "the client's end has come")
        broker.setblocking(False)

        def accept():
            with suppress(BlockingIOError):
                open_.enter_context(broker.accept()[0])
            return weir.metric("weir_throttled_requests_total") > 0 and weir.metric("weir_connections") == 0

        wait_until(accept, "its place is free")
