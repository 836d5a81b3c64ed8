"""Clients of the soak outlive connections that end at any moment, and end at once when they are cancelled."""

import asyncio
import itertools
import socket
import ssl
import struct
import time

import pytest
import uvloop

from loadtest.scenarios.soak import raw_requests as raw
from loadtest.scenarios.soak.journal import Journal
from loadtest.scenarios.soak.visitor import Surroundings, Visitor, send

HOST = "127.0.0.1"
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
LIMIT = 60.0


def reset(writer):
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()


async def reset_at_once(_, writer):
    reset(writer)


async def reset_after_one_answer(reader, writer):
    size = int.from_bytes(await reader.readexactly(4), "big")
    request = await reader.readexactly(size)
    writer.write(struct.pack(">i", 10) + request[4:8] + b"\0" * 6)
    reset(writer)


def around(journal, port):
    cluster = raw.Cluster({0: (HOST, port)}, {})
    return Surroundings(journal, ssl.create_default_context(), time.monotonic, {False: cluster, True: cluster})


def test_a_request_on_a_closed_transport_is_a_lost_connection():
    async def run():
        server = await asyncio.start_server(reset_at_once, HOST, 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        with pytest.raises(ConnectionResetError):
            await writer.wait_closed()
        with pytest.raises(ConnectionResetError):
            send(writer, b"request")
        server.close()

    uvloop.run(run())


@pytest.mark.parametrize("serve", [reset_at_once, reset_after_one_answer])
def test_visitors_come_again_after_resets_and_end_when_cancelled(serve, tmp_path):
    async def run():
        visits, enough = itertools.count(1), asyncio.Event()

        async def count(reader, writer):
            await serve(reader, writer)
            if next(visits) == 150:
                enough.set()

        server = await asyncio.start_server(count, HOST, 0, backlog=256)
        with Journal(tmp_path / "journal") as journal:
            shared = around(journal, server.sockets[0].getsockname()[1])
            visitors = [Visitor(place, 100, 1, shared, (0.01, 0.05)) for place in range(100)]
            tasks = [asyncio.create_task(visitor.run(0.0)) for visitor in visitors]
            await asyncio.wait_for(enough.wait(), LIMIT)
            assert not any(task.done() for task in tasks), shared.counts
            for task in tasks:
                task.cancel()
            done, left = await asyncio.wait(tasks, timeout=LIMIT)
            assert not left
            assert all(task.cancelled() for task in done)
        server.close()

    uvloop.run(run())
