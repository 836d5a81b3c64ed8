"""Concurrent requests share one run, and no result is older than its request."""

import asyncio

import pytest

from gateway.admin import single_flight
from gateway.admin.single_flight import SingleFlight


class Work:
    """Counts its runs. Each run ends once `go_on` is set."""

    def __init__(self) -> None:
        self.runs = self.running = self.most_at_once = 0
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self) -> int:
        self.runs += 1
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        self.begun.set()
        await self.go_on.wait()
        self.running -= 1
        return self.runs


async def test_waiting_requests_share_the_next_run():
    work = Work()
    flight = SingleFlight(work)
    first = asyncio.ensure_future(flight.get())
    await work.begun.wait()
    later = [asyncio.ensure_future(flight.get()) for _ in range(30)]
    await asyncio.sleep(0)
    work.go_on.set()
    assert await first == 1
    assert await asyncio.gather(*later) == [2] * 30
    assert work.most_at_once == 1


async def test_canceled_request_leaves_the_others_their_result():
    work = Work()
    flight = SingleFlight(work)
    first, second = asyncio.ensure_future(flight.get()), asyncio.ensure_future(flight.get())
    await work.begun.wait()
    first.cancel()
    work.go_on.set()
    assert await second == 1


async def test_failure_reaches_all_and_the_next_run_works():
    failures = [OSError("no"), None]

    async def work() -> str:
        if (failure := failures.pop(0)) is not None:
            raise failure
        return "done"

    flight = SingleFlight(work)
    results = await asyncio.gather(flight.get(), flight.get(), return_exceptions=True)
    assert [str(result) for result in results] == ["no", "no"]
    assert await flight.get() == "done"


async def test_costly_runs_take_a_fifth_of_the_time(monkeypatch: pytest.MonkeyPatch):
    now, slept = 1_000.0, []

    async def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += max(seconds, 0.0)

    async def work() -> None:
        nonlocal now
        now += costs.pop(0)

    monkeypatch.setattr(single_flight.clock, "monotonic", lambda: now)
    monkeypatch.setattr(single_flight.asyncio, "sleep", sleep)
    costs = [0.125, 5.0, 0.25]
    flight = SingleFlight(work)
    for _ in range(3):
        await flight.get()
    assert slept[1:] == [0.5, 1.0]
