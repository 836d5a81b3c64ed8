import asyncio
import errno
import socket

import pytest

from gateway.cluster import acceptor as module
from gateway.cluster.acceptor import ACCEPTS_PER_WAKE, Acceptor


class Echo(asyncio.Protocol):
    """A connection that says back what it hears, or the list of all of them."""

    def __init__(self, made):
        self._made = made

    def connection_made(self, transport):
        self.transport = transport
        self._made.append(self)

    def data_received(self, data):
        self.transport.write(data)


@pytest.fixture
def made():
    return []


@pytest.fixture
def bound():
    with socket.create_server(("127.0.0.1", 0), backlog=128) as bound:
        bound.setblocking(False)
        yield bound


@pytest.fixture
async def acceptor(bound, made):
    acceptor = Acceptor(bound, lambda: Echo(made))
    acceptor.start()
    yield acceptor
    acceptor.close()
    for each in made:
        each.transport.abort()
    await asyncio.sleep(0)


async def says_back(port, text=b"hello"):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    assert await reader.readexactly(len(text)) == text
    writer.close()
    await writer.wait_closed()


async def test_more_connections_than_one_wake_takes_are_all_served(acceptor, bound, made):
    port = bound.getsockname()[1]
    await asyncio.gather(*(says_back(port) for _ in range(2 * ACCEPTS_PER_WAKE + 1)))
    assert len(made) == 2 * ACCEPTS_PER_WAKE + 1


async def test_what_connected_before_it_started_is_served(bound, made):
    with socket.create_connection(bound.getsockname()) as early:
        early.sendall(b"hello")
        early.setblocking(False)
        acceptor = Acceptor(bound, lambda: Echo(made))
        acceptor.start()
        assert await asyncio.get_running_loop().sock_recv(early, 5) == b"hello"
        acceptor.close()


async def test_once_closed_nobody_gets_in_and_who_is_in_stays(acceptor, bound, made):
    port = bound.getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"
    acceptor.close()
    acceptor.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"b")
    assert await reader.readexactly(1) == b"b"
    writer.close()


async def test_without_files_it_tries_again_later(monkeypatch, caplog, bound, made):
    class Exhausted:
        """A listening socket of a process that has no file descriptor left, once."""

        def __init__(self):
            self.calls = 0

        def fileno(self):
            return bound.fileno()

        def accept(self):
            self.calls += 1
            if self.calls == 1:
                raise OSError(errno.EMFILE, "Too many open files")
            return bound.accept()

        def close(self):
            bound.close()

    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    acceptor = Acceptor(Exhausted(), lambda: Echo(made))
    acceptor.start()
    await says_back(bound.getsockname()[1])
    assert "Too many open files" in caplog.text
    acceptor.close()
