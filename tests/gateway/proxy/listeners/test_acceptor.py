import asyncio
import errno
import socket
import ssl
from types import SimpleNamespace

import pytest

from gateway.proxy.counters import Counters
from gateway.proxy.listeners import acceptor as module
from gateway.proxy.listeners.acceptor import ACCEPTS_PER_WAKE
from gateway.proxy.tls.handshakes import Handshakes
from gateway.quotas.meter import Window
from tests.gateway.proxy.listeners.house import ask


async def says_back(house):
    with await house.connect() as client:
        assert await ask(client) == b"hello"


async def test_more_connections_than_one_wake_accepts_are_served(house):
    here = house()
    await asyncio.gather(*(says_back(here) for _ in range(2 * ACCEPTS_PER_WAKE + 1)))
    assert len(here.made) == 2 * ACCEPTS_PER_WAKE + 1


async def test_connection_before_start_is_served(bound, house):
    with socket.create_connection(bound.getsockname()) as early:
        early.setblocking(False)
        house()
        assert await ask(early) == b"hello"


async def test_closed_acceptor_keeps_existing_connections(house):
    here = house()
    with await here.connect() as inside:
        assert await ask(inside) == b"hello"
        here.acceptor.close()
        here.acceptor.close()
        with pytest.raises(ConnectionRefusedError):
            await here.connect()
        assert await ask(inside, b"still") == b"still"


async def test_finishing_acceptor_serves_kernel_queue(house):
    here = house(start=False)
    clients = [await here.connect() for _ in range(2 * ACCEPTS_PER_WAKE + 1)]
    here.acceptor.finish()  # never started: all of them wait in the queue
    here.acceptor.finish()
    with pytest.raises(ConnectionRefusedError):
        await here.connect()
    assert await asyncio.gather(*(ask(client) for client in clients)) == [b"hello"] * len(clients)


async def test_flood_of_connections_does_not_keep_finish_from_its_end(bound, house):
    class Flooded:
        """A listening socket whose clients connect, and disconnect before their accept, faster than they are accepted."""

        def __getattr__(self, name):
            return getattr(bound, name)

        def accept(self):
            raise ConnectionAbortedError(errno.ECONNABORTED, "Software caused connection abort")

        _accept = accept

    house(Flooded(), start=False).acceptor.finish()
    assert bound.fileno() < 0


async def test_handshake_survives_finish_and_ends_on_close(house):
    context = SimpleNamespace(context=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    handshakes = Handshakes("clients", context, 10.0, Counters())
    here = house(tls=handshakes)
    with await here.connect() as client:
        here.acceptor.finish()
        await asyncio.sleep(0)
        assert handshakes.in_progress == 1
        handshakes.close()
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
        assert handshakes.in_progress == 0


async def test_acceptor_retries_without_file_descriptors(monkeypatch, caplog, bound, house):
    class Exhausted:
        """A listening socket of a process that once has no file descriptor left."""

        def __init__(self):
            self.calls = 0

        def __getattr__(self, name):
            return getattr(bound, name)

        def accept(self):
            self.calls += 1
            if self.calls == 1:
                raise OSError(errno.EMFILE, "Too many open files")
            return bound.accept()

        def _accept(self):
            connection, address = self.accept()
            return connection.detach(), address

    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    here = house(Exhausted())
    await says_back(here)
    assert "no connection can be accepted for 0.01 s: Too many open files" in caplog.text
    assert all(word in caplog.text for word in ("listener ", "LimitNOFILE", "ulimit -n"))
    assert caplog.records[-1].reason.startswith("accept "), "by which the log thins it out"


async def test_clients_leave_the_last_files_to_weir(monkeypatch, caplog, house, limit_files, take_files):
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    limit_files(256)
    here = house()
    waits = asyncio.Event()
    caplog.handler.addFilter(lambda record: waits.set() or True)
    early = await here.connect()
    give_back = take_files(256 - 64)
    assert await ask(early) == b"hello"
    first, second = [await here.connect() for _ in range(2)]
    assert await ask(first) == b"hello", "it has the first file beyond, and shows that"
    asking = asyncio.create_task(ask(second))
    await waits.wait()
    assert "no connection can be accepted for 0.01 s: Too many open files: the last 64 are Weir's own" in caplog.text
    assert not asking.done()
    give_back()
    assert await asking == b"hello"


async def test_address_at_connection_limit_is_refused(house):
    here = house(max_per_ip=1)
    left = here.left()
    with await here.connect() as first:
        assert await ask(first) == b"hello"
        with await here.connect() as second:
            assert await ask(second) == b""
        assert (len(here.made), here.counters.rejected) == (1, {"max_per_ip": 1})
    await left.wait()
    await says_back(here)


async def test_address_over_rate_is_held_then_closed(house):
    here = house(
        start=False, ip_rate=0.02, window=Window(1_001, 0.1), max_held=3
    )  # two connections, and the next one 50 seconds later
    clients = [await here.connect() for _ in range(6)]
    here.acceptor.start()  # all connections wait in the queue
    # Two are admitted, three are held, and one exceeds the limit of held connections.
    assert [await ask(client) for client in clients] == [b"hello"] * 2 + [b""] * 4
    assert len(here.made) == 2
    assert here.counters.rejected == {"connection_creation_rate": 3, "too_many_held": 1}
    assert here.admission.held == 0


async def test_held_connections_close_with_gateway(house):
    here = house(ip_rate=1 / 600, window=Window(2, 600.0))
    clients = [await here.connect() for _ in range(3)]
    assert await ask(clients[0]) == b"hello"
    assert here.admission.held == 2
    await here.close()
    assert here.admission.held == 0


async def test_connection_over_maximum_waits_for_a_place(house):
    here = house(max_connections=1)
    first, second = await here.connect(), await here.connect()
    assert await ask(first) == b"hello"
    waiting = asyncio.create_task(ask(second))
    await asyncio.sleep(0.05)  # wait, because nothing must happen
    assert (waiting.done(), len(here.made)) == (False, 1)
    first.close()
    assert await waiting == b"hello"


async def test_client_that_gave_up_in_the_queue_is_not_served(house):
    """Served, it would use up a rate. If more such clients came than the rate serves, no client would be served any more."""
    here = house(max_connections=1)
    first = await here.connect()
    assert await ask(first) == b"hello"
    for _ in range(3):
        (await here.connect()).close()
    last = await here.connect()
    first.close()
    assert await ask(last) == b"hello"
    assert len(here.made) == 2


async def test_full_listener_serves_its_ports_in_turn(house):
    here = house(max_connections=1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        here.open_port(other).start()
        first = await here.connect()
        assert await ask(first) == b"hello"
        crowd = [await here.connect() for _ in range(2)]
        late = await here.connect(to=other.getsockname())
        answers = [asyncio.create_task(ask(client)) for client in (late, *crowd)]
        for left, answer in ((first, answers[0]), (late, answers[1])):
            left.close()
            assert await answer == b"hello"
        assert not answers[2].done()
        answers[2].cancel()


async def test_connections_over_listener_rate_wait_and_are_served(house):
    here = house(start=False, connection_creation_rate=20)
    clients = [await here.connect() for _ in range(25)]
    here.acceptor.start()  # all connections wait in the queue
    assert [await ask(client) for client in clients] == [b"hello"] * 25
    assert here.quotas.listeners["clients"].throttle_seconds_total > 0
    assert here.counters.rejected == {}


async def test_failed_handshake_gives_place_back(house):
    context = SimpleNamespace(context=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    counters = Counters()
    here = house(tls=Handshakes("clients", context, 10.0, counters), max_connections=1)
    for _ in range(3):
        left = here.left()
        with await here.connect() as client:
            assert await ask(client, b"this is no ClientHello") != b"this is no ClientHello"
        await left.wait()
    assert here.made == []
    assert counters.handshake_failures.total() == 3
