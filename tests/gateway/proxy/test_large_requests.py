"""Large requests pass uncopied through one buffer for all connections, and arrive unchanged."""

import asyncio
import random

import uvloop

from gateway.proxy.large_requests import BODY_BYTES, HEAD_BYTES, LARGE_BYTES, LargeRequestReader
from loadtest.testkit.certificates import Authority
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.test_draining_sockets import Place, make_place, on_uvloop  # noqa: F401 -- a fixture
from tests.gateway.proxy.transcript import Transcript, limits
from tests.gateway.running import until

LARGE = 900_000
REQUESTS = 20


def large(number):
    """A Produce with random bytes behind its head."""
    frame = m.produce(number, size=LARGE, client_id="other")
    return frame[:200] + random.Random(number).randbytes(len(frame) - 200)


def small(first):
    return [m.produce(number, size=50, client_id="other") for number in range(first, first + 90)]


@on_uvloop
async def test_slow_broker_gets_the_bytes_of_its_own_client(place):
    await send_to_slow_and_quick_broker(place)


async def send_to_slow_and_quick_broker(place):
    """The kernel takes a part of a chunk, so the transport keeps the rest while others use the buffer."""
    slow, quick = [large(number) for number in range(REQUESTS)], [large(number) for number in range(100, 100 + REQUESTS)]
    _, to_gateway = await place.client()
    to_gateway.write(b"".join(slow))
    slow_broker, _ = await place.broker()
    session = await place.session()
    await until(lambda: session._broker is not None and session._broker.get_write_buffer_size())
    _, from_other = await place.client()
    from_other.write(b"".join(quick))
    quick_broker, _ = await place.broker()
    assert await quick_broker.readexactly(sum(map(len, quick))) == b"".join(quick)
    assert await slow_broker.readexactly(sum(map(len, slow))) == b"".join(slow)


@on_uvloop
async def test_small_and_large_requests_arrive_in_order(place):
    requests = [request for number in range(0, 1_000, 100) for request in (large(number), *small(number + 1))]
    _, to_gateway = await place.client()
    to_gateway.write(b"".join(requests))
    broker, _ = await place.broker()
    assert await broker.readexactly(sum(map(len, requests))) == b"".join(requests)


def test_broker_with_tls_gets_the_bytes_of_its_own_client(tmp_path):
    async def send():
        async with asyncio.timeout(60), Place(broker_authority=Authority(tmp_path)) as place:
            await send_to_slow_and_quick_broker(place)

    uvloop.run(send())


def test_uncopied_body_is_charged_and_mutes_at_its_end():
    request = m.produce(1, size=100_000)
    t = Transcript(limits(produce=1_000.0))
    t.client_sends(request[:50_000])
    t.client_sends(request[50_000:80_000], uncopied=True)
    assert (t.row().amount_total, t.core.throttle.active) == (80_000 - 4, False)
    t.client_sends(request[80_000:] + m.produce(2), uncopied=True)
    t.broker_got(request)
    assert (t.row().amount_total, t.core.throttle.active, t.paused) == (len(request) - 4, True, True)


def test_request_that_is_held_is_copied():
    request = m.produce(2, size=100_000)
    t = Transcript(limits(produce=1_000.0))
    t.client_sends(m.produce(1, size=20_000))
    t.broker_got(m.produce(1, size=20_000))
    t.client_sends_into_the_loop(request[:50_000])
    assert t.core.requests.passing_bytes == 0


def test_read_ends_where_the_request_ends():
    request = m.produce(1, size=LARGE_BYTES + BODY_BYTES)
    t = Transcript(limits(produce=1_000_000.0))
    reader = LargeRequestReader(t, t.core.requests)
    assert len(reader.get_buffer(-1)) == HEAD_BYTES
    t.client_sends(request[: -BODY_BYTES - 5_000])
    assert len(reader.get_buffer(-1)) == BODY_BYTES
    t.client_sends(request[-BODY_BYTES - 5_000 : -5_000])
    assert len(reader.get_buffer(-1)) == 5_000
    t.client_sends(request[-5_000:])
    assert len(reader.get_buffer(-1)) == HEAD_BYTES
