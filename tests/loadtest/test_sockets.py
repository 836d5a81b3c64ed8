"""The counter parses the output of `ss` and counts real connections."""

import os
import socket
import time

import pytest

from loadtest.scenarios.evenness.sockets import Counted, ReceivedCounter, parse

PRINTED = """\
0      0      [::ffff:127.0.0.1]:45770 [::ffff:127.0.0.1]:28498 users:(("java",pid=16450,fd=135)) bbr rto:204 \
bytes_sent:229215 bytes_acked:229216 bytes_received:104202 segs_out:10904
0      12     127.0.0.1:50000 127.0.0.1:28498 cubic rto:204 bytes_sent:10 bytes_retrans:5 segs_out:10
"""


def test_ss_output_is_parsed() -> None:
    assert parse(PRINTED) == [Counted(45770, 104202, 16450), Counted(50000, 0, 0)]


def until_counted(counter: ReceivedCounter, least: int) -> int:
    """Return this process's count as soon as it reaches `least`, or its value after a minute."""
    deadline = time.monotonic() + 60
    while True:
        counted = counter.series([os.getpid()])
        last = counted[-1][1] if counted else 0
        if last >= least or time.monotonic() > deadline:
            return last
        time.sleep(0.05)


@pytest.mark.process
def test_received_bytes_stay_counted_after_close() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        counter = ReceivedCounter([server.getsockname()[1]])
        counter.start()
        try:
            for round_ in (1, 2):
                with socket.create_connection(server.getsockname()) as client, server.accept()[0] as peer:
                    peer.sendall(b"y" * 2_000)
                    assert len(client.recv(2_000, socket.MSG_WAITALL)) == 2_000
                    assert until_counted(counter, 2_000 * round_) == 2_000 * round_
        finally:
            counter.stop()
        assert counter.connections([os.getpid()]) == 2
        assert counter.connections([1]) == 0
        assert counter.series([1]) == []
