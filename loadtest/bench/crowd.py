"""Clients that were in use before a latency measurement, so that pages, scrapes and ticks have rows."""

import socket
import sys

from loadtest.bench.frames import produce_load
from loadtest.bench.generator import host_and_port
from loadtest.bench.proxies import wait_listening
from loadtest.testkit.kafka import spawn, stop

_PATIENCE_SECONDS = 30.0


def visit_once(address: str, broker_port: int, topic: str, clients: int) -> None:
    """Have each client send one Produce on a connection of its own, with a broker that ends afterwards.

    Raises `OSError` and `ProxyUnavailableError`.
    """
    broker = spawn([sys.executable, "-m", "loadtest.bench.null_broker", str(broker_port), topic])
    try:
        wait_listening(broker, broker_port, "the broker of the crowd did not start")
        for number in range(clients):
            with socket.create_connection(host_and_port(address), _PATIENCE_SECONDS) as client:
                client.sendall(produce_load(topic, 0, 100, 1, f"crowd-{number:04}").frames[0])
                if not client.recv(1024):
                    raise OSError(f"client crowd-{number:04} got no response")
    finally:
        stop(broker, timeout=2.0)
