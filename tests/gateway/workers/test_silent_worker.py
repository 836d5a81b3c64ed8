"""A command that asks the supervisor while one worker is silent: the supervisor answers after `ASK_SECONDS`."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from selectors import DefaultSelector

from gateway.admin.rows import CurrentPlaces
from gateway.config.model import WeirConfig
from gateway.migration.lift_command import _running_quotas
from gateway.migration.lift_rules import GatewayQuotas
from gateway.workers.pages import WorkersServer
from gateway.workers.place import WorkerPlace
from loadtest.testkit.kafka import free_port

ANSWER = {
    "version": 7,
    "loaded_at": "x",
    "config": {"quotas": {"enforce": True, "entities": []}},
    "warnings": [],
    "reloads": {},
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


async def asked(directory: Path) -> GatewayQuotas:
    """The quotas that `weir quotas lift --admin` gets of a supervisor with two workers. One of them is silent."""
    places = []
    async with AsyncExitStack() as stack:
        for number, respond in enumerate((speak, be_silent)):
            socket = directory / f"worker-{number}"
            await stack.enter_async_context(await asyncio.start_unix_server(respond, socket))
            places.append(WorkerPlace(number, (), socket, lambda: 1))
            places[-1].process = number + 1
        config = WeirConfig.model_validate(
            {"upstream": {"bootstrap_servers": ["127.0.0.1:1"]}, "listeners": [{"bootstrap_port": 9092}]}
        )
        port = free_port()
        server = WorkersServer(places, ("127.0.0.1", port), lambda: None, {}, CurrentPlaces(lambda: config, "weir.yaml"))
        await server.start()
        stack.push_async_callback(server.stop)
        return await _running_quotas(f"http://127.0.0.1:{port}")


def test_lift_waits_for_the_supervisor_of_a_silent_worker(tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=lambda: HastyLoop(HastySelector())) as runner:
        quotas = runner.run(asked(tmp_path))
    assert (quotas.enforce, quotas.rows) == (True, ())
