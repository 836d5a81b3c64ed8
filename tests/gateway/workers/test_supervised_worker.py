"""A supervised worker: its process is replaced if it hangs."""

import asyncio
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path
from typing import Self

import pytest

from gateway import clock
from gateway.background import FIRST_SECONDS
from gateway.config.effective import ConfigHistory
from gateway.config.model import WeirConfig
from gateway.workers import supervised_worker
from gateway.workers.supervised_worker import HUNG_SECONDS, SupervisedWorker, WorkerUnreachableError
from gateway.workers.worker import Worker
from loadtest.testkit.kafka import free_port, free_port_range
from tests.gateway.running import until

pytestmark = pytest.mark.process

HANGS = "import time; time.sleep(600)"


async def test_worker_that_hangs_is_killed_and_replaced(
    tmp_path: Path, claims: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervised_worker, "ASK_SECONDS", 0.5)
    worker = Worker(0, tmp_path, claims)
    first = free_port_range(2)
    listener = {"name": "clients", "bootstrap_port": first, "broker_ports": f"{first + 1}-{first + 1}"}
    upstream = {"bootstrap_servers": [f"127.0.0.1:{free_port()}"]}
    history = ConfigHistory(1, 0.0, 0.0, {})
    worker.keep(WeirConfig.model_validate({"upstream": upstream, "listeners": [listener]}), history)
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(tmp_path / "weir.yaml")]
    command += ["--worker", "0", "--worker-directory", str(tmp_path), "--worker-claims", str(claims)]
    processes = count(1)
    of_worker = SupervisedWorker(0, command, worker.admin_socket, lambda: next(processes), inherited=[claims])
    running = asyncio.create_task(of_worker.run())
    try:
        await asyncio.wait_for(of_worker.started.wait(), 60)
        hanging = of_worker.pid
        os.kill(hanging, signal.SIGSTOP)
        # Set only now, because a worker that is slow to start does not hang.
        monkeypatch.setattr(supervised_worker, "HUNG_SECONDS", 0.5)
        of_worker.started.clear()
        await asyncio.wait_for(of_worker.started.wait(), 60)
        assert (of_worker.restarts, of_worker.process) == (1, 2)
        assert of_worker.pid != hanging
        lines = [line for line in caplog.records if line.getMessage().startswith("worker 0 ")]
        assert [(vars(line)["worker"], vars(line)["pid"]) for line in lines] == [(0, hanging)] * 2
    finally:
        of_worker.stop()
        assert await asyncio.wait_for(running, 60) == 0


class PlayedWorker:
    """A worker whose process only sleeps. The test serves its socket: it counts `looks`, and may leave them unanswered."""

    def __init__(self, socket: Path) -> None:
        self.worker = SupervisedWorker(0, [sys.executable, "-c", HANGS], socket, lambda: 1)
        self.answers = True
        self.looks = 0
        self._socket = socket

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self.worker.run())
        await until(lambda: self.worker.process)  # before, the worker would remove the socket
        self._server = await asyncio.start_unix_server(self._respond, self._socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.worker.stop()
        assert await asyncio.wait_for(self._running, 20) == 0

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.looks += 1
        if self.answers:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nready")
        writer.close()


@pytest.fixture
async def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PlayedWorker]:
    """A worker that is asked every 10 ms."""
    monkeypatch.setattr(supervised_worker, "LOOK_SECONDS", 0.01)
    async with PlayedWorker(tmp_path / "socket") as worker:
        yield worker


async def test_silent_worker_is_not_ready_until_it_answers(played: PlayedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_worker, "SILENT_SECONDS", 0.0)
    await until(lambda: played.worker.not_ready is None)
    played.answers = False
    await until(lambda: played.worker.not_ready == "does not answer")
    played.answers = True
    await until(lambda: played.worker.not_ready is None)


async def test_worker_that_misses_a_look_stays_ready(played: PlayedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_worker, "SILENT_SECONDS", 60.0)
    await until(lambda: played.worker.not_ready is None)
    played.answers = False
    missed = played.looks
    await until(lambda: played.looks > missed + 2)
    assert played.worker.not_ready is None


async def test_standstill_of_all_is_no_silence(played: PlayedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the machine was suspended."""
    await until(lambda: played.worker.not_ready is None)
    played.answers = False
    missed = played.looks
    later = clock.monotonic() + 10 * HUNG_SECONDS
    monkeypatch.setattr(clock, "monotonic", lambda: later)
    await until(lambda: played.looks > missed + 3)
    assert played.worker.restarts == 0


async def test_first_process_that_cannot_be_started_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = SupervisedWorker(0, [str(tmp_path / "python")], tmp_path / "socket", lambda: 1)
    assert await worker.run() == 1
    assert f"worker 0 can't be started: [Errno 2] No such file or directory: '{tmp_path / 'python'}'" in caplog.messages


async def test_worker_answers_after_its_socket_was_deleted(played: PlayedWorker, tmp_path: Path) -> None:
    await until(lambda: played.worker.not_ready is None)
    (tmp_path / "socket").unlink()
    assert await played.worker.ask("/readyz") == b"ready"


async def test_silent_worker_that_starts_is_starting(played: PlayedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_worker, "SILENT_SECONDS", 0.0)
    played.answers = False
    await until(lambda: played.looks > 2)
    assert played.worker.not_ready == "starting"


async def test_worker_that_hangs_at_its_start_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_worker, "START_SECONDS", 0.3)
    started: list[bool] = []
    second = asyncio.Event()

    def next_process() -> int:
        started.append(True)
        if len(started) == 2:
            second.set()
        return len(started)

    worker = SupervisedWorker(0, [sys.executable, "-c", HANGS], tmp_path / "socket", next_process)
    running = asyncio.create_task(worker.run())
    try:
        await asyncio.wait_for(second.wait(), 20)
        assert worker.restarts == 1
    finally:
        worker.stop()
        assert await asyncio.wait_for(running, 20) == 0


async def test_failed_start_after_a_long_life_is_tried_after_a_pause(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def prepare() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    of_worker = SupervisedWorker(0, ["false"], tmp_path / "socket", lambda: 1, prepare)
    of_worker.started.set()
    of_worker._answered_at = float("-inf")  # the process before has answered for a long time
    running = asyncio.create_task(of_worker.run())
    await until(lambda: bool(caplog.messages))
    of_worker.stop()
    assert await asyncio.wait_for(running, 60) == 0
    (line,) = caplog.messages
    assert line.startswith("worker 0 can't be started: [Errno 24] Too many open files — ")
    assert "raise the service's LimitNOFILE" in line
    assert line.endswith(f"; another is started in {FIRST_SECONDS:g} s")


async def test_page_of_an_error_is_no_answer(tmp_path: Path) -> None:
    """A worker of another version may lack a page, and a text is no JSON."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 14\r\nConnection: close\r\n\r\n404: Not Found")
        writer.close()

    async with await asyncio.start_unix_server(respond, tmp_path / "socket"):
        with pytest.raises(WorkerUnreachableError, match="worker 3 answers 404 to /api/facts"):
            await SupervisedWorker(3, (), tmp_path / "socket", lambda: 1).ask("/api/facts")


async def test_supervisor_without_files_does_not_blame_worker(
    tmp_path: Path, limit_files: Callable[[int], None], next_file: int
) -> None:
    limit_files(next_file)  # the event loop already has the files that it needs
    with pytest.raises(WorkerUnreachableError) as raised:
        await SupervisedWorker(0, (), tmp_path / "socket", lambda: 1).ask("/readyz")
    assert raised.value.is_own


async def test_silent_worker_is_to_blame(tmp_path: Path) -> None:
    with pytest.raises(WorkerUnreachableError) as raised:
        await SupervisedWorker(0, (), tmp_path / "none", lambda: 1).ask("/readyz")
    assert not raised.value.is_own
