"""`weir quotas forgive` where several workers have a client's debts."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.admin.admin_client import AdminUnreachableError, ask
from gateway.admin.forgive import FORGIVE
from gateway.config.effective import EffectiveConfig
from gateway.config.model import WeirConfig
from gateway.observer import Outlet
from gateway.workers.pages import WorkersServer
from gateway.workers.supervised_worker import SupervisedWorker
from loadtest.testkit.kafka import free_port

WANTED = {"user": "alice"}
DEBT = {"user": "alice", "kind": "produce", "seconds": 2.0}


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As a worker that has cleared a debt."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"POST " + FORGIVE.encode())
    body = json.dumps({"cleared": [DEBT]})
    writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
    writer.close()


@pytest.fixture
async def open_() -> AsyncIterator[AsyncExitStack]:
    async with asyncio.timeout(30), AsyncExitStack() as stack:
        yield stack


async def forgive(open_: AsyncExitStack, directory: Path, answering: list[bool]) -> object:
    """The answer of a supervisor with running workers, of which some answer. Raises AdminUnreachableError."""
    workers = []
    for number, answers in enumerate(answering):
        socket = directory / f"worker-{number}"
        if answers:
            await open_.enter_async_context(await asyncio.start_unix_server(answer, socket))
        workers.append(SupervisedWorker(number, (), socket, lambda: 1))
        workers[-1].process, workers[-1]._answered_at = number + 1, 1.0
    config = WeirConfig.model_validate(
        {"upstream": {"bootstrap_servers": ["127.0.0.1:1"]}, "listeners": [{"name": "clients", "bootstrap_port": 9092}]}
    )
    port = free_port()
    effective = EffectiveConfig(config, 0.0, Outlet())
    server = WorkersServer(workers, ("127.0.0.1", port), lambda: None, {}, effective)
    await server.start()
    open_.push_async_callback(server.stop)
    return (await ask(f"http://127.0.0.1:{port}", FORGIVE, "cleared", WANTED))["cleared"]


async def test_debts_of_all_workers_are_cleared(open_: AsyncExitStack, tmp_path: Path) -> None:
    assert await forgive(open_, tmp_path, [True, True]) == [DEBT, DEBT]


@pytest.mark.parametrize(
    ("answering", "words"),
    [
        ([True, False], r"no answer from worker 1: .*The others have cleared 1 debts\. Try again"),
        ([False, False], "no answer from worker 0, worker 1: .*cleared 0 debts"),
        ([], "no worker answers"),
    ],
)
async def test_silent_worker_is_named(open_: AsyncExitStack, tmp_path: Path, answering: list[bool], words: str) -> None:
    """Its clients stay muted, and `nothing to clear` would be a lie."""
    with pytest.raises(AdminUnreachableError, match=words):
        await forgive(open_, tmp_path, answering)
