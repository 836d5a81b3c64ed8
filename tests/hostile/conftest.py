"""A whole gateway, in a process of its own, before a broker that the test controls. No JVM."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.hostile.raw_client import RawClient
from tests.hostile.stub_broker import StubBroker
from tests.weir_process import Weir


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    """The only broker of its cluster."""
    with StubBroker() as stub:
        yield stub


@pytest.fixture
def connect() -> Iterator[Callable[..., RawClient]]:
    """`connect(weir)`: a raw connection to a gateway (or to "host:port"), closed after the test."""
    with ExitStack() as opened:

        def open_one(to: Weir | str, **options: float) -> RawClient:
            address = to if isinstance(to, str) else to.bootstrap_servers
            return opened.enter_context(RawClient(address, **options))

        yield open_one
