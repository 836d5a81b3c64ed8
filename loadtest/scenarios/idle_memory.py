"""`python -m loadtest.scenarios.idle_memory`: the gateway's memory for idle connections, with a real broker.

Each connection sends one request (ApiVersions) and then stays silent. It has a session, a token bucket and a connection to
the broker, like a client between two bursts.
"""

import argparse
import resource
import socket
import struct
import sys
import tempfile
from pathlib import Path

from loadtest.testkit.gateway_process import CompiledGateway, GatewayError
from loadtest.testkit.kafka import JarsMissingError, KafkaCluster, NodeError
from loadtest.testkit.paths import RUN

_MIB = 1024 * 1024
_SPARE_FILES = 100
_CLIENT_ID = b"idle"
_REQUEST = struct.pack(">ihhih", 10 + len(_CLIENT_ID), 18, 0, 1, len(_CLIENT_ID)) + _CLIENT_ID
"""ApiVersions v0 with correlation id 1."""


class TooFewFilesError(RuntimeError):
    """The limit of open files is too low for the number of sockets."""


def allow_files(count: int) -> None:
    """Raise the limit of open files for this process and its children. Raises `TooFewFilesError`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= count:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(hard, count)))
    except (ValueError, OSError):
        raise TooFewFilesError(
            f"the limit of open files is {hard}, {count} are needed (two sockets a connection): raise it (ulimit -Hn), or "
            f"measure fewer: --connections {(hard - _SPARE_FILES) // 2}"
        ) from None


def connect(address: str) -> socket.socket:
    """Open a connection, send one request, and read the response. Raises `OSError`."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=30.0)
    connection.sendall(_REQUEST)
    answer = bytearray()
    while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
        chunk = connection.recv(65536)
        if not chunk:
            raise ConnectionError(f"{address} closed the connection instead of answering")
        answer += chunk
    return connection


def measure(count: int) -> tuple[int, int]:
    """The gateway's resident bytes without connections and with `count` idle ones."""
    allow_files(2 * count + _SPARE_FILES)
    RUN.mkdir(exist_ok=True)
    config = {
        "quotas": {"entities": [{"client-id": "<default>", "producer_byte_rate": _MIB, "consumer_byte_rate": _MIB}]},
        "connections": {"max_per_ip": count + 10},
    }
    with (
        tempfile.TemporaryDirectory(prefix="idle-", dir=RUN) as directory,
        KafkaCluster(Path(directory)) as kafka,
        CompiledGateway(Path(directory) / "weir", kafka.bootstrap_servers, config) as gateway,
    ):
        before = gateway.resident_bytes()
        connections = []
        try:
            for number in range(1, count + 1):
                connections.append(connect(gateway.bootstrap_servers))
                if number % 1000 == 0:
                    print(f"{number} connections: {gateway.resident_bytes() / _MIB:.0f} MiB", flush=True)
            sockets = len(gateway.sockets())
            if sockets < 2 * count:
                raise ConnectionError(f"the gateway holds {sockets} sockets: some of the {count} connections were closed")
            return before, gateway.resident_bytes()
        finally:
            for connection in connections:
                connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios.idle_memory", description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000, help="number of connections (default: 10000)")
    options = parser.parse_args()
    if options.connections < 1:
        parser.error(f"--connections {options.connections}: give 1 or more")
    try:
        before, after = measure(options.connections)
    except (TooFewFilesError, JarsMissingError, NodeError, GatewayError, OSError) as error:
        print(f"idle_memory: {error}", file=sys.stderr)
        return 1
    each = (after - before) / options.connections / 1024
    print(f"resident memory of the gateway: {before / _MIB:.0f} MiB without connections, {after / _MIB:.0f} MiB with")
    print(f"{options.connections} idle ones: {each:.1f} KiB each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
