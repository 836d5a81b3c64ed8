"""SIGTERM, as a balancer, a client and an operator see it: one process, and several workers."""

import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.proxy import messages as m
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.process

LONG = 3_600
TIMEOUT = 60.0


@pytest.fixture
def broker() -> Iterator[socket.socket]:
    """The test is the broker."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(TIMEOUT)
        yield listening


@pytest.fixture(params=[1, 2], ids=["alone", "workers"])
def start(request: pytest.FixtureRequest, tmp_path: Path, broker: socket.socket) -> Iterator[Callable[..., Weir]]:
    with ExitStack() as running:

        def begin(**connections: Any) -> Weir:
            config = {"connections": connections, "workers": request.param}
            servers = f"127.0.0.1:{broker.getsockname()[1]}"
            weir = running.enter_context(Weir(tmp_path, servers, config, wait="/livez"))
            wait_until(lambda: weir.log().count('"serving"') == request.param, "every process serves")
            return weir

        yield begin


def connect(weir: Weir) -> socket.socket:
    return socket.create_connection(("127.0.0.1", weir.ports[0]), timeout=TIMEOUT)


def receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count and (chunk := connection.recv(count - len(received))):
        received += chunk
    return received


def the_one_that_gets(broker: socket.socket, frame: bytes) -> socket.socket:
    """The connection on which a client's request arrives; Weir's own are closed."""
    size_and_api = 6
    while True:
        with ExitStack() as stack:
            connection = stack.enter_context(broker.accept()[0])
            connection.settimeout(TIMEOUT)
            # A request of Weir's own may be shorter than the frame. Weir would wait 5 s for its answer.
            start = receive(connection, size_and_api)
            if start == frame[:size_and_api] and start + receive(connection, len(frame) - size_and_api) == frame:
                stack.pop_all()
                return connection


def workers(weir: Weir) -> list[int]:
    """The processes that exist now."""
    return [int(child) for child in Path(f"/proc/{weir.pid}/task/{weir.pid}/children").read_text().split()]


def drained(weir: Weir) -> tuple[int, int]:
    """The numbers of drained and of cut connections, from the logs of all processes."""
    ends = [event for event in weir.events() if "drained" in event]
    return sum(event["drained"] for event in ends), sum(event["cut"] for event in ends)


def test_delay_shows_only_in_readyz(start: Callable[..., Weir], broker: socket.socket) -> None:
    weir = start(drain_delay_seconds=LONG)
    weir.process.terminate()
    wait_until(lambda: weir.not_ready() == "draining\n", "/readyz says that it drains")
    begun = "Weir accepts connections for 3600 s more"
    # Wait for each process: a process that gets two signals before it has seen the first one counts them as one.
    wait_until(lambda: weir.log().count(begun) == weir.config["workers"], "every process has begun")
    assert weir.get("/livez") == "live\n"
    with connect(weir) as client:
        client.sendall(m.heartbeat(1))
        with the_one_that_gets(broker, m.heartbeat(1)) as upstream:
            upstream.sendall(m.beat(1))
            assert receive(client, len(m.beat(1))) == m.beat(1)
            client.sendall(m.heartbeat(2))
            assert receive(upstream, len(m.heartbeat(2))) == m.heartbeat(2)
            assert weir.get("/livez") == "live\n"
            weir.process.terminate()  # once more
            assert receive(client, 1) == b""
    assert weir.process.wait(TIMEOUT) == 0
    assert drained(weir) == (0, 1)


@pytest.mark.parametrize("start", [2], indirect=True, ids=["workers"])
def test_signal_to_every_process_drains_once(start: Callable[..., Weir], broker: socket.socket) -> None:
    """As with systemd, each worker gets a signal besides the one from its supervisor."""
    weir = start(drain_seconds=LONG)
    with connect(weir) as client:
        client.sendall(m.heartbeat(1))
        with the_one_that_gets(broker, m.heartbeat(1)) as upstream:
            for process in (*workers(weir), weir.pid):
                os.kill(process, signal.SIGTERM)
            wait_until(lambda: "draining 1 connections" in weir.log(), "the connection is waited for")
            (serving,) = wait_until(lambda: len(workers(weir)) == 1 and workers(weir), "the idle one has ended")
            os.kill(serving, signal.SIGTERM)
            wait_until(lambda: weir.metric("weir_connections") == 1, "the worker answers after the signal")
            upstream.sendall(m.beat(1))
            assert receive(client, len(m.beat(1)) + 1) == m.beat(1)
    assert weir.process.wait(TIMEOUT) == 0
    assert drained(weir) == (1, 0)


def test_requests_in_flight_are_answered_before_exit(start: Callable[..., Weir], broker: socket.socket) -> None:
    weir = start(drain_seconds=LONG)
    with connect(weir) as client, connect(weir) as idle:
        client.sendall(m.heartbeat(1))
        with the_one_that_gets(broker, m.heartbeat(1)) as upstream:
            weir.process.terminate()
            assert receive(idle, 1) == b""
            begun = re.compile(r"draining \d+ connections for up to")
            wait_until(lambda: len(begun.findall(weir.log())) == weir.config["workers"], "nobody accepts any more")
            with pytest.raises(ConnectionRefusedError):
                connect(weir)
            assert weir.not_ready() == "draining\n"
            upstream.sendall(m.beat(1))
            assert receive(client, len(m.beat(1)) + 1) == m.beat(1)
    assert weir.process.wait(TIMEOUT) == 0
    assert drained(weir) == (2, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_more_signals_keep_the_exit_code(start: Callable[..., Weir], number: signal.Signals) -> None:
    """They also arrive while Python ends, when no event loop handles them any more."""
    weir = start()
    while weir.process.poll() is None:
        weir.process.send_signal(number)
    assert weir.process.returncode == 0
