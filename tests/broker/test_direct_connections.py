"""The check for direct connections to brokers finds a client that connects."""

import os
import subprocess
import sys

import pytest

from loadtest.testkit.kafka import KafkaCluster, live_brokers, spawn, stop
from tests.broker.direct_connections import DirectConnections
from tests.weir_process import wait_until

pytestmark = pytest.mark.broker

CONNECT = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print('connected'); s.recv(1)"


def test_process_that_connects_directly_is_seen(kafka: KafkaCluster) -> None:
    port = kafka.brokers[0].port
    with DirectConnections([port], allowed=[os.getpid(), kafka.brokers[0].pid]) as direct:
        live_brokers("127.0.0.1", port)  # by this process, which is allowed
        process = spawn([sys.executable, "-c", CONNECT, str(port)], stdout=subprocess.PIPE)
        try:
            # Another test's gateway may be connected as well, because the cluster is shared.
            wait_until(
                lambda: any(found.startswith(f"process {process.pid}: ") for found in direct.found),
                "the connection is seen",
            )
        finally:
            stop(process)
            assert process.stdout is not None
            process.stdout.close()
