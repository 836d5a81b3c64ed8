"""Sessions whose broker speaks TLS: uvloop's transport does not count the bytes below TLS."""

import asyncio

import pytest
import uvloop

from gateway.proxy import broker_end
from loadtest.testkit.certificates import Authority
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.test_draining_sockets import Place, begin, until


def run(scenario):
    async def limited():
        async with asyncio.timeout(60):
            await scenario

    uvloop.run(limited())


@pytest.mark.parametrize(
    ("frame", "counted"),
    [(m.produce(1, acks=0), 1), (m.produce(1), 0), (m.heartbeat(1), 0)],
    ids=["acks=0", "acks=1", "heartbeat"],
)
def test_session_without_answers_counts_until_the_end_of_tls(tmp_path, frame, counted):
    """A drain waits for its bytes."""

    async def scenario():
        async with Place(None, Authority(tmp_path)) as place:
            _, to_gateway, broker, to_client, session = await begin(place, frame)
            to_client.transport.pause_reading()
            to_gateway.close()
            await until(lambda: session._client is None)
            assert len(place.sessions) == counted
            to_client.transport.resume_reading()
            assert await broker.read() == b""
            await place.sessions.wait_empty()

    run(scenario())


def test_broker_that_does_not_end_tls_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(broker_end, "CLOSE_SECONDS", 0.01)

    async def scenario():
        async with Place(None, Authority(tmp_path)) as place:
            _, to_gateway, _, to_client, session = await begin(place, m.heartbeat(1))
            to_client.transport.pause_reading()
            to_gateway.close()
            await until(lambda: not hasattr(session, "_core"))

    run(scenario())


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

    run(scenario())
    assert not errors
