"""Puts the simulated clock, network and cluster in the place of the real ones while a run lasts.

The gateways' own code stays as it is. Everything that it takes from outside stands in one table here.
"""

import logging
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from gateway.cluster.brokers import Address
from gateway.config.load import parse_config
from gateway.config.model import WeirConfig
from loadtest.simulation.network import Network, Verdicts
from loadtest.simulation.own_connections import OwnTopics
from loadtest.simulation.virtual_loop import PROCESS, VirtualLoop

WALL_BEGIN = 1_800_000_000.0
"""The wall clock of a process without an error when the monotonic clock is 0."""


class _NoAdminServer:
    """Pages and metrics are no part of the simulation."""

    def __init__(self, *_: object) -> None:
        pass

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


class _Errors(logging.Handler):
    """A line that reports an error of Weir's own is a violation."""

    def __init__(self, verdicts: Verdicts, network: Network) -> None:
        super().__init__()
        self._verdicts = verdicts
        self._network = network

    def emit(self, record: logging.LogRecord) -> None:
        if self._network.log is not None:
            process = PROCESS.get()
            self._network.log.append(f"{'':9}  {'' if process is None else process.name} logs: {record.getMessage()}")
        if record.levelno < logging.ERROR:
            return
        if record.name == "weir.config" or "refused" in record.getMessage():
            return  # a config with a mistake
        text = record.getMessage()
        if record.exc_info is not None and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        self._verdicts.fail("error in the log", text)


@lru_cache(maxsize=2_000)
def parsed(text: str) -> WeirConfig:
    """The config of a file's text. Gateways parse the same text at each start and reload. Raises ConfigError."""
    return parse_config(text, source="weir.yaml")


async def _watch(*_: object, **__: object) -> AsyncIterator[set[Any]]:
    """Takes the place of `watchfiles.awatch`."""
    process = PROCESS.get()
    assert process is not None
    while True:
        await process.config_changed.wait()
        process.config_changed.clear()
        yield set()


@contextmanager
def surroundings(loop: VirtualLoop, network: Network, own: OwnTopics, verdicts: Verdicts, seed: int) -> Iterator[None]:
    """Replace the surroundings of gateways, until the end of the `with` block."""
    chance = random.Random(f"{seed}-tokens")

    def bind(host: str, port: int, *, reuse_port: bool) -> Any:
        assert not reuse_port
        process = PROCESS.get()
        assert process is not None
        return network.listen(process, (host, port))

    def wall() -> float:
        process = PROCESS.get()
        return WALL_BEGIN + loop.time() + (0.0 if process is None else process.wall_offset)

    def unread_bytes(fd: int, _: int, size: Any) -> int:
        end = network.open.get(fd)
        size[0] = 0 if end is None else end.received_bytes
        return 0

    async def mechanisms(address: Address, _: object = None) -> tuple[str, ...]:
        await own.connect(*address)
        return ()

    replaced: dict[str, Any] = {
        "gateway.clock.monotonic": loop.time,
        "gateway.clock.busy": loop.time,
        "gateway.clock.wall": wall,
        "gateway.proxy.connection.monotonic": loop.time,
        "gateway.features.connection_quotas.admission.monotonic": loop.time,
        "gateway.proxy.tcp_info.ioctl": unread_bytes,
        "gateway.binding.listening_socket": bind,
        "gateway.cluster.client.create_conn": own.connect,
        "gateway.cluster.discovery.sasl_mechanisms": mechanisms,
        "gateway.config.reload.awatch": _watch,
        "gateway.config.reload.parse_config": lambda text, **_: parsed(text),
        "gateway.config.reload.signal": SimpleNamespace(SIGHUP=signal.SIGHUP, SIG_IGN=None, signal=lambda *_: None),
        "gateway.app.AdminServer": _NoAdminServer,
        "secrets.token_hex": lambda size: f"{chance.getrandbits(8 * size):0{2 * size}x}",
    }
    weir = logging.getLogger("weir")
    level, propagate, handlers, before = weir.level, weir.propagate, weir.handlers[:], random.getstate()
    patches = [patch(name, value) for name, value in replaced.items()]
    random.seed(seed)
    weir.setLevel(logging.ERROR if network.log is None else logging.INFO)
    weir.propagate = False
    weir.handlers = [_Errors(verdicts, network)]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()
        weir.setLevel(level)
        weir.propagate, weir.handlers = propagate, handlers
        random.setstate(before)
