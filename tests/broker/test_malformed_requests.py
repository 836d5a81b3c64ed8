"""A client that violates Kafka's protocol loses its connection. The error is counted and logged once, and others continue."""

import random
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, Producer

from loadtest.testkit.kafka import KafkaCluster, read_exactly
from tests.broker.topics import create_topic
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

TIMEOUT = 60.0
API_VERSIONS, METADATA, PRODUCE, FETCH = 18, 3, 0, 1


def request(api_key: int, version: int, body: bytes) -> bytes:
    """Return a whole frame with a version 1 request header."""
    header = struct.pack(">hhih", api_key, version, 7, 4) + b"evil"
    return struct.pack(">i", len(header) + len(body)) + header + body


def client_hello() -> bytes:
    """Return the first bytes of a TLS client."""
    outgoing = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="kafka.example.com")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def produce_body(topic: str) -> bytes:
    """A Produce v3 with bytes that are no record batch, to partition 0, with acks=1."""
    name = topic.encode()
    start = struct.pack(">hhi", -1, 1, 1_000) + struct.pack(">ih", 1, len(name)) + name
    return start + struct.pack(">iii", 1, 0, 8) + bytes(8)


def fetch_body(topic: str) -> bytes:
    """A Fetch v4 of partition 0 from its beginning, without waiting."""
    name = topic.encode()
    start = struct.pack(">iiiib", -1, 0, 0, 1_000_000, 0) + struct.pack(">ih", 1, len(name)) + name
    return start + struct.pack(">iiqi", 1, 0, 0, 1_000_000)


ENDLESS = struct.pack(">i", 2_147_483_647)
JUNK = {
    "2 GB length": ENDLESS + b"\x00\x00\x00\x03",
    "negative length": struct.pack(">i", -1) + bytes(20),
    "no room for a header": struct.pack(">i", 2) + bytes(2),
    "client-id longer than its frame": struct.pack(">ihhih", 10, METADATA, 1, 7, 500),
    "unknown API": request(999, 0, b""),
    "HTTP": b"GET / HTTP/1.1\r\nHost: kafka.example.com\r\n\r\n",
    "TLS ClientHello": client_hello(),
    **{f"random bytes {seed}": struct.pack(">i", 4_000) + random.Random(seed).randbytes(4_000) for seed in range(5)},
    **{f"random length {seed}": random.Random(seed).randbytes(4_000) for seed in range(5)},
}


class Bystander:
    """An unrelated producer that must notice nothing."""

    def __init__(self, gateway: Weir, topic: str) -> None:
        self._topic = topic
        self._errors: list[KafkaError] = []
        self._producer = Producer({"bootstrap.servers": gateway.bootstrap_servers, "error_cb": self._errors.append})

    def assert_goes_on(self) -> None:
        """Fail unless one more record is acknowledged and no connection was lost so far."""
        failed: list[KafkaError] = []
        self._producer.produce(self._topic, b"x", callback=lambda error, _: failed.append(error) if error else None)
        assert self._producer.flush(TIMEOUT) == 0
        assert failed == []
        assert self._errors == []


@pytest.fixture(scope="module")
def gateway(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    with Weir(tmp_path_factory.mktemp("weir"), kafka.bootstrap_servers) as running:
        yield running


@pytest.fixture(scope="module")
def topic(gateway: Weir) -> str:
    return create_topic(gateway.bootstrap_servers, f"hostile-{uuid4().hex[:8]}")


@pytest.fixture
def bystander(gateway: Weir, topic: str) -> Iterator[Bystander]:
    somebody = Bystander(gateway, topic)
    somebody.assert_goes_on()
    yield somebody
    somebody.assert_goes_on()
    # Client bytes must never cause an internal error of Weir.
    assert gateway.metric("weir_protocol_errors_total", reason="internal") == 0


def connect(gateway: Weir) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.ports[0]), TIMEOUT)


def read_answer(connection: socket.socket) -> bytes:
    """Return the next response without its length."""
    return read_exactly(connection, int.from_bytes(read_exactly(connection, 4), "big"))


def read_to_end(connection: socket.socket) -> bytes:
    """Return all bytes until the gateway closes. Raises TimeoutError if it does not."""
    received = b""
    try:
        while chunk := connection.recv(65_536):
            received += chunk
    except ConnectionResetError:
        pass  # closed with unread bytes
    return received


def complaints(gateway: Weir) -> list[dict[str, Any]]:
    return [event for event in gateway.events() if event["level"] in ("warning", "error", "critical")]


@contextmanager
def counted_and_logged_once(gateway: Weir) -> Iterator[None]:
    """Fail unless one protocol error happens within the block and its reason is logged. Repetitions need not be logged."""
    counted, logged = gateway.metric("weir_protocol_errors_total"), len(complaints(gateway))
    yield
    wait_until(lambda: gateway.metric("weir_protocol_errors_total") == counted + 1, "the error is counted once")
    assert len(complaints(gateway)) <= logged + 1
    reasons = gateway.label_values("weir_protocol_errors_total", "reason")
    assert reasons <= {complaint.get("reason") for complaint in complaints(gateway)}


@pytest.mark.parametrize("junk", JUNK)
def test_junk_ends_its_connection(gateway: Weir, bystander: Bystander, junk: str) -> None:
    with counted_and_logged_once(gateway), connect(gateway) as connection:
        connection.sendall(JUNK[junk])
        bystander.assert_goes_on()
        assert read_to_end(connection) == b""


def test_tls_on_plaintext_port_is_named_in_the_log(gateway: Weir, bystander: Bystander) -> None:
    with connect(gateway) as connection:
        connection.sendall(client_hello())
        assert read_to_end(connection) == b""
    assert "TLS" in gateway.log()


def test_frame_that_ends_early_ends_its_connection(gateway: Weir, bystander: Bystander) -> None:
    frame = request(METADATA, 1, struct.pack(">i", 0))
    for length in range(1, len(frame)):
        with counted_and_logged_once(gateway), connect(gateway) as connection:
            connection.sendall(frame[:length])
            connection.shutdown(socket.SHUT_WR)
            assert read_to_end(connection) == b""
    wait_until(lambda: gateway.metric("weir_connections") == gateway.client_sockets(), "no half-open connection")


def test_frame_in_two_pieces_is_answered(gateway: Weir, bystander: Bystander) -> None:
    frame = request(METADATA, 1, struct.pack(">i", 0))
    answers = set()
    with connect(gateway) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for length in range(1, len(frame)):
            connection.sendall(frame[:length])
            bystander.assert_goes_on()  # so that the gateway reads the first piece separately
            connection.sendall(frame[length:])
            answers.add(read_answer(connection))
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        (METADATA, 1, lambda topic: struct.pack(">ih", 1, len(topic)) + topic.encode()),
        (PRODUCE, 3, produce_body),
        (FETCH, 4, fetch_body),
        (API_VERSIONS, 3, lambda topic: b"\x00\x05kcat\x042.0\x00"),
    ],
    ids=["metadata", "produce", "fetch", "api-versions"],
)
def test_truncated_body_is_answered_or_ends_connection(
    gateway: Weir, bystander: Bystander, topic: str, api_key: int, version: int, body: Callable[[str], bytes]
) -> None:
    whole = body(topic)
    for length in range(len(whole)):
        with connect(gateway) as connection:
            connection.sendall(request(api_key, version, whole[:length]))
            connection.shutdown(socket.SHUT_WR)
            read_to_end(connection)
    bystander.assert_goes_on()
    wait_until(lambda: gateway.metric("weir_connections") == gateway.client_sockets(), "no half-open connection")


def test_many_bad_clients_do_not_delay_others(gateway: Weir, bystander: Bystander) -> None:
    counted = gateway.metric("weir_protocol_errors_total")
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(gateway)) for _ in range(200)]
        for index, connection in enumerate(connections):
            connection.sendall(random.Random(index).randbytes(64) if index % 2 else ENDLESS)
            if index % 20 == 0:
                bystander.assert_goes_on()
        for connection in connections[::2]:
            assert read_to_end(connection) == b""
    wait_until(lambda: gateway.metric("weir_protocol_errors_total") >= counted + 100, "all errors are counted")
    wait_until(lambda: gateway.metric("weir_connections") == gateway.client_sockets(), "no half-open connection")


def test_log_never_holds_client_bytes(gateway: Weir, bystander: Bystander) -> None:
    secret = b"correct horse battery staple"
    with connect(gateway) as connection:
        connection.sendall(struct.pack(">i", 2_000_000_000) + secret)
        assert read_to_end(connection) == b""
    assert secret.decode() not in Path(gateway.log_file).read_text()
