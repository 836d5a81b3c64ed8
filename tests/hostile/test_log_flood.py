"""Errors of many connections are folded into one log line with a count."""

import socket

from loadtest.testkit.kafka import free_port
from tests.gateway.proxy import messages as m

CLIENTS = 10
"""Connections from distinct addresses, because lines of one address are folded in any case."""


def send_from_many_addresses(weir, data):
    """Connect once from each address, send `data`, and wait until the gateway closes the connection."""
    host, _, port = weir.bootstrap_servers.rpartition(":")
    for number in range(CLIENTS):
        with socket.create_connection((host, int(port)), 20.0, source_address=(f"127.0.0.{number + 2}", 0)) as client:
            client.sendall(data)
            assert client.recv(1) == b""


def test_broker_that_closes_every_connection_gets_one_line(broker, start_weir):
    weir = start_weir(broker.bootstrap_servers)
    send_from_many_addresses(weir, m.heartbeat(1))  # the stub closes a connection that sends an API without an answer
    assert len(weir.logged("closed the connection")) == 1


def test_unreachable_broker_gets_one_line(start_weir):
    weir = start_weir(f"127.0.0.1:{free_port()}", wait="/livez")
    send_from_many_addresses(weir, m.heartbeat(1))
    assert len(weir.logged("the bootstrap broker can't be reached")) == 1
    assert weir.metric("weir_connections_rejected_total", reason="broker_unreachable") == CLIENTS
