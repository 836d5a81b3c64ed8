"""A worker that hangs before its first answer, in the supervisor's hands: a real process, without a gateway in it."""

import asyncio
import sys

from gateway.workers import place
from gateway.workers.place import WorkerPlace

HANGS = "import time; time.sleep(600)"


async def test_worker_that_hangs_at_its_start_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "START_SECONDS", 0.3)
    started, second = [], asyncio.Event()

    def next_process():
        started.append(True)
        if len(started) == 2:
            second.set()
        return len(started)

    worker = WorkerPlace(0, [sys.executable, "-c", HANGS], tmp_path / "socket", next_process)
    running = asyncio.create_task(worker.run())
    try:
        await asyncio.wait_for(second.wait(), 20)
        assert worker.restarts == 1
    finally:
        worker.stop()
        assert await asyncio.wait_for(running, 20) == 0
