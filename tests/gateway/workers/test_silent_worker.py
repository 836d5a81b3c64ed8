"""A supervisor whose workers are silent. It answers by the others after `ASK_SECONDS`."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from selectors import DefaultSelector

import pytest
from aiohttp import ClientSession

from gateway.config.effective import EffectiveConfig
from gateway.config.model import WeirConfig
from gateway.migration.lift_command import _running_quotas
from gateway.migration.lift_rules import GatewayQuotas
from gateway.observer import Outlet
from gateway.workers.pages import WorkersServer
from gateway.workers.supervised_worker import SupervisedWorker

ANSWER = {
    "version": 7,
    "loaded_at": "x",
    "config": {"quotas": {"enforce": True, "entities": []}},
    "warnings": [],
    "reloads": {},
    "last_reload": None,
}
HASTE = 5
"""In this file, a second of the event loop takes a fifth of a second."""


class HastySelector(DefaultSelector):
    def select(self, timeout: float | None = None):
        return super().select(None if timeout is None else timeout / HASTE)


class HastyLoop(asyncio.SelectorEventLoop):
    def time(self) -> float:
        return HASTE * super().time()


async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    body = json.dumps(ANSWER)
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write((head + body).encode())
    writer.close()


async def be_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@asynccontextmanager
async def supervising(workers: Sequence[SupervisedWorker]) -> AsyncIterator[str]:
    """The URL of a supervisor's admin server."""
    config = WeirConfig.model_validate(
        {"upstream": {"bootstrap_servers": ["127.0.0.1:1"]}, "listeners": [{"bootstrap_port": 9092}]}
    )
    effective = EffectiveConfig(config, 0.0, Outlet())
    server = WorkersServer(workers, ("127.0.0.1", 0), lambda: None, {}, effective)
    await server.start()
    yield f"http://127.0.0.1:{server.port}"
    await server.stop()


async def asked(directory: Path) -> GatewayQuotas:
    """The quotas that `weir quotas lift --admin` gets of a supervisor with two workers. One of them is silent."""
    workers = []
    async with AsyncExitStack() as stack:
        for number, respond in enumerate((speak, be_silent)):
            socket = directory / f"worker-{number}"
            await stack.enter_async_context(await asyncio.start_unix_server(respond, socket))
            workers.append(SupervisedWorker(number, (), socket, lambda: 1))
            workers[-1].process = number + 1
        return await _running_quotas(await stack.enter_async_context(supervising(workers)), 1)


def test_lift_waits_for_the_supervisor_of_a_silent_worker(tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=lambda: HastyLoop(HastySelector())) as runner:
        quotas = runner.run(asked(tmp_path))
    assert (quotas.enforce, quotas.rows) == (True, ())


@pytest.mark.parametrize(
    "path",
    ["api/quotas", "api/config", "api/groups", "api/connections", "api/explain", "entities?user=a", "api/entities?user=a"],
)
async def test_page_without_a_worker_answers_503(path: str) -> None:
    async with supervising([]) as url, ClientSession() as session, session.get(f"{url}/{path}") as answer:
        assert (answer.status, await answer.text()) == (503, "no worker answers\n")
