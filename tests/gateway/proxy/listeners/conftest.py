"""Acceptors on a local port, and the file of the claims of ports."""

import socket

import pytest

from tests.gateway.proxy.listeners.house import House


@pytest.fixture
def bound():
    with socket.create_server(("127.0.0.1", 0), backlog=128) as bound:
        bound.setblocking(False)
        yield bound


@pytest.fixture(params=[False, True], ids=["loop", "own"])
def own(request):
    """True for transports of Weir's own, in place of the event loop's."""
    return request.param


@pytest.fixture
async def house(bound, own):
    """`house(ip_rate=5)`: an acceptor that has started, unless that is the test's to do; it is closed with its clients."""
    built = []

    def build(listening=bound, *, start=True, **limits):
        built.append(House(listening, own=own, **limits))
        if start:
            built[-1].acceptor.start()
        return built[-1]

    yield build
    for each in built:
        await each.close()
