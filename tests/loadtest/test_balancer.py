"""The balancer of the rolling restart, between a client and a gateway that the test plays."""

import gc
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from loadtest.scenarios.rolling_restart.balancer import Backend, Balancer
from loadtest.testkit.kafka import free_port
from tests.weir_process import wait_until

TIMEOUT = 30.0


class Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass  # the exception would go to stderr


@pytest.fixture
def admin_port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def read_to_the_end(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def collect_in(balancer: Balancer) -> None:
    """Collect garbage between two steps of the loop, while none of its tasks runs."""
    done = threading.Event()
    assert balancer._loop is not None
    balancer._loop.call_soon_threadsafe(lambda: (gc.collect(), done.set()))
    assert done.wait(TIMEOUT)


def test_answer_reaches_a_client_that_sends_no_more(admin_port: int) -> None:
    port = free_port()
    backend = Backend("127.0.0.2", admin_port)
    with socket.create_server((backend.host, port)) as gateway:
        gateway.settimeout(TIMEOUT)
        with Balancer("127.0.0.1", [port], [backend]) as balancer:
            wait_until(lambda: backend.ready, "the balancer sees that it is ready")
            with socket.create_connection(("127.0.0.1", port), TIMEOUT) as client:
                connection, _ = gateway.accept()
                with connection:
                    connection.settimeout(TIMEOUT)
                    client.sendall(b"a request")
                    client.shutdown(socket.SHUT_WR)
                    assert read_to_the_end(connection) == b"a request"
                    connection.sendall(b"its ")
                    assert client.recv(1 << 16) == b"its "  # so this direction has ended
                    collect_in(balancer)  # must not free the two connections
                    connection.sendall(b"answer")
                assert read_to_the_end(client) == b"answer"
