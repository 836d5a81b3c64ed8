"""The fixtures of tests that run a whole gateway process before a broker that the test controls. No JVM."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

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

        def open_one(to: Weir | str, **options: Any) -> RawClient:
            address = to if isinstance(to, str) else to.bootstrap_servers
            return opened.enter_context(RawClient(address, **options))

        yield open_one


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """`faults("wall", -86_400)`: a fault for the gateways that this test starts. See faults/sitecustomize.py."""
    folder = tmp_path / "faults"
    folder.mkdir()
    monkeypatch.setenv("WEIR_FAULTS", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "faults"), prepend=os.pathsep)

    def begin(name: str, value: float) -> None:
        new = folder / "new"
        new.write_text(str(value))
        new.replace(folder / name)

    return begin
