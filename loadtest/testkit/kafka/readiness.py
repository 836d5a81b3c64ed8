"""Checks that a node is ready with one hand-written Metadata request, without a client library."""

import socket
import struct

_METADATA, _VERSION, _CORRELATION_ID = 3, 1, 7
_TIMEOUT_SECONDS = 5.0


def live_brokers(host: str, port: int) -> frozenset[int]:
    """The ids of the brokers that the broker at host:port regards as alive. Raises `OSError` until the broker answers."""
    client_id = b"weir-readiness"
    # Metadata v1 with an empty array of topics; null would request all topics.
    header = struct.pack(">hhih", _METADATA, _VERSION, _CORRELATION_ID, len(client_id)) + client_id
    request = header + struct.pack(">i", 0)
    with socket.create_connection((host, port), _TIMEOUT_SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", read_exactly(connection, 4))
        body = read_exactly(connection, length)
    return frozenset(_broker_ids(body))


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """The next `count` bytes. MSG_WAITALL does not work on a socket with a timeout.

    Raises `ConnectionError` if the connection is closed before that.
    """
    received = b""
    while len(received) < count:
        chunk = connection.recv(count - len(received))
        if not chunk:
            raise ConnectionError(f"closed after {len(received)} of {count} bytes")
        received += chunk
    return received


def _broker_ids(body: bytes) -> list[int]:
    ids = []
    (count,) = struct.unpack_from(">i", body, 4)
    at = 8
    for _ in range(count):
        node_id, host_length = struct.unpack_from(">ih", body, at)
        at += 6 + host_length + 4
        (rack_length,) = struct.unpack_from(">h", body, at)
        at += 2 + max(rack_length, 0)
        ids.append(node_id)
    return ids
