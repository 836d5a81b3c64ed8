"""Sessions whose broker speaks TLS: nothing that either side has written is lost at the end."""

import asyncio
import logging
import os
import ssl
from functools import partial

import pytest
import uvloop

from gateway.proxy.tls import tls_transport
from gateway.proxy.tls.broker_handshake import BrokerHandshake
from gateway.proxy.tls.tls_transport import TlsTransport
from loadtest.testkit.certificates import Authority
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.test_draining_sockets import (
    HOST,
    Place,
    begin,
    leave,
    leave_bytes_behind,
    overfill_broker,
    server_context,
    without_garbage,
)
from tests.gateway.proxy.tls.test_tls_transport import Below
from tests.gateway.running import until

DAMAGED_RECORD = bytes.fromhex("1703030040") + bytes(64)


def run(scenario):
    async def limited():
        async with asyncio.timeout(60):
            await scenario()

    uvloop.run(limited())


@pytest.fixture(params=[False, True], ids=["uvloop's transport", "own transport"])
def make_place(request, tmp_path):
    return partial(Place, None, Authority(tmp_path), own=request.param)


def test_slow_client_gets_all_answers_of_broker_that_closes(make_place):
    """The broker's end arrives with its last answers, while the client reads nothing."""
    answers = [(20_004).to_bytes(4) + number.to_bytes(4) + bytes(20_000) for number in range(1_000)]

    async def scenario():
        async with make_place() as place:
            client, _, _, to_client, session = await begin(place, *(m.fetch(number) for number in range(len(answers))))
            client._transport.pause_reading()
            sent = 0
            while not session._requests.client_full:
                to_client.write(answers[sent])
                await to_client.drain()
                await turns(10)
                sent += 1
            to_client.write(b"".join(answers[sent : sent + 10]))
            to_client.close()
            await turns(100)
            to_client.transport.abort()  # a broker waits for no close_notify
            await turns(100)
            client._transport.resume_reading()
            assert await client.read() == b"".join(answers[: sent + 10])

    run(scenario)


async def turns(number):
    """Let the event loop serve what has arrived."""
    for _ in range(number):
        await asyncio.sleep(0)


def test_slow_broker_gets_all_bytes_of_client_that_has_gone(make_place, monkeypatch):
    """The time for the end of TLS begins after them."""
    monkeypatch.setattr(tls_transport, "SHUTDOWN_SECONDS", 0.01)

    async def scenario():
        async with make_place() as place:
            broker, rest, session = await leave_bytes_behind(place)
            short = session._broker._timer
            monkeypatch.undo()
            await until(lambda: session._broker._timer is not short)
            assert len(place.sessions) == 1
            assert await broker.read() == rest
            await place.sessions.wait_empty()

    run(scenario)


def test_broker_that_does_not_end_tls_is_left(make_place, monkeypatch):
    monkeypatch.setattr(tls_transport, "SHUTDOWN_SECONDS", 0.01)

    async def scenario():
        async with make_place() as place:
            _, to_gateway, _, to_client, session = await begin(place, m.heartbeat(1))
            to_client.transport.pause_reading()
            await leave(place, to_gateway, lambda: not hasattr(session, "_core"))

    run(scenario)


def test_broker_whose_tls_fails_gets_no_time_for_unsent_bytes(make_place, monkeypatch):
    """Such a broker may never read them, and the client would wait for ever."""
    monkeypatch.setattr(tls_transport, "SHUTDOWN_SECONDS", 0.01)

    async def scenario():
        async with make_place() as place:
            _, to_gateway, _, to_client, session = await begin(place, m.heartbeat(1))
            to_client.transport.pause_reading()
            await overfill_broker(to_gateway, session)
            os.write(to_client.get_extra_info("socket").fileno(), DAMAGED_RECORD)
            await until(lambda: not hasattr(session, "_core"))
            to_gateway.close()

    run(scenario)


def test_broker_may_ask_for_new_keys(make_place):
    """JSSE does so after 128 GiB. The replies wait for the next request."""

    async def scenario():
        async with make_place() as place:
            client, _, _, to_client, session = await begin(place, m.heartbeat(1), m.heartbeat(2))
            session._broker._outgoing.write(bytes(2 * 27))  # in place of OpenSSL's replies: Python can't ask for new keys
            for number in (1, 2):
                to_client.write(m.beat(number))
                assert await client.readexactly(len(m.beat(number))) == m.beat(number)

    run(scenario)


def test_end_of_the_handshake_goes_out_with_the_first_request(tmp_path):
    """A broker that refuses the certificate may reset a later request, and the reset would hide its alert."""
    authority, below = Authority(tmp_path), Below()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    broker = server_context(authority).wrap_bio(incoming, outgoing, server_side=True)
    tls = TlsTransport(ssl.create_default_context(cafile=authority.cert), BrokerHandshake(asyncio.Protocol()), HOST)
    tls.connection_made(below)
    incoming.write(below.sent.pop())
    with pytest.raises(ssl.SSLWantReadError):
        broker.do_handshake()
    tls.data_received(outgoing.read())
    assert not below.sent
    tls.write(m.heartbeat(1))
    incoming.write(below.sent.pop())
    broker.do_handshake()
    assert broker.read() == m.heartbeat(1)


@pytest.mark.parametrize("own", [False, True], ids=["uvloop's transport", "own transport"])
def test_failed_handshake_leaves_no_garbage(tmp_path, monkeypatch, own):
    """Clients of a broker with a wrong certificate connect again and again."""
    monkeypatch.setattr(logging.getLogger("weir.session"), "disabled", True)  # pytest would keep the error

    async def scenario():
        async with Place(None, Authority(tmp_path / "broker's"), own=own) as place:
            place._dial_tls = ssl.create_default_context(cafile=Authority(tmp_path / "other").cert)
            client, to_gateway = await place.client()
            async with without_garbage():
                to_gateway.write(m.heartbeat(1))
                assert await client.read() == b""
                to_gateway.close()
                await place.sessions.wait_empty()

    run(scenario)


class CutSession(asyncio.Protocol):
    """The broker's end of a session that ends in the turn in which its broker's handshake has ended."""

    def __init__(self, end, place):
        self._end, self._place = end, place
        self.lost = place.lost

    def connection_made(self, transport):
        self._end.connection_made(transport)
        for session in self._place.sessions:
            session.abort()

    def data_received(self, data):
        self._end.data_received(data)

    def connection_lost(self, exc):
        self._end.connection_lost(exc)
        self.lost.set()


class CuttingPlace(Place):
    async def _dial(self, protocol):
        self.lost = asyncio.Event()
        return await super()._dial(lambda: CutSession(protocol(), self))


def test_session_may_end_with_the_handshake_of_its_broker(tmp_path):
    errors = []

    async def scenario():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        async with CuttingPlace(None, Authority(tmp_path)) as place:
            _, to_gateway = await place.client()
            to_gateway.write(m.heartbeat(1))
            await place.broker()
            await place.lost.wait()
            await place.sessions.wait_empty()

    run(scenario)
    assert not errors
