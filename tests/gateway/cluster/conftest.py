"""Fixtures of several test files: what a test opens, and a server that never answers."""

import socket
from contextlib import ExitStack, closing

import pytest


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def silent(stack):
    """The port of a server at 127.0.0.1 that does not answer: its queue is full, so the kernel drops connections."""
    server = stack.enter_context(closing(socket.socket()))
    server.bind(("127.0.0.1", 0))
    server.listen(0)
    for _ in range(3):
        client = stack.enter_context(closing(socket.socket()))
        client.setblocking(False)
        client.connect_ex(server.getsockname())
    return server.getsockname()[1]
