"""The live page: a snapshot each second for its viewers, and the last minutes for new viewers."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from heapq import heappush, heapreplace
from typing import Any, Final, Protocol

from aiohttp import web

from gateway.admin.config_answer import config_facts
from gateway.admin.json_text import json_parts
from gateway.admin.rows import described
from gateway.admin.single_flight import SingleFlight
from gateway.admin.view import AdminView
from gateway.clock import iso
from gateway.config.endpoints import ServerAddress
from gateway.config.places import Places
from gateway.quotas.kinds import ROW_KINDS
from gateway.quotas.snapshot import UsageRow, is_throttled
from gateway.steps import Steps
from gateway.time_slices import in_slices
from gateway.version import weir_version

SNAPSHOT_SECONDS = 1.0
HISTORY_SECONDS = 300
MAX_THROTTLED = 1_000
MAX_TOP = 20
MAX_VIEWERS = 64
"""Each viewer is a connection and some KiB a second. Further viewers get 503."""

_WAITING_SNAPSHOTS = 2

_log = logging.getLogger("weir.admin")

Point = dict[str, float]
"""A second: `at` (wall clock, seconds), `muted` connections, `throttles` in that second."""


class SnapshotSource(Protocol):
    """The source of the live page's data."""

    def record_second(self) -> None:
        """Called once a second, also without viewers."""
        ...

    async def snapshot_with_history(self) -> tuple[list[Point], dict[str, Any]]:
        """The last minutes, a point for each second, and the current snapshot: plain values."""
        ...


class LiveFeed:
    """Sends snapshots as server-sent events. Without viewers, no snapshot is made."""

    def __init__(self, source: SnapshotSource) -> None:
        self._source = source
        self._first = SingleFlight(source.snapshot_with_history)  # for new viewers
        self._viewers: set[asyncio.Queue[bytes | None]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="draw the live page")

    async def stop(self) -> None:
        """End the streams of all viewers."""
        if self._task is not None:
            self._task.cancel()
        for viewer in self._viewers:
            _offer(viewer, None)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """`GET /api/stream`: server-sent events, first `history`, then `snapshot` again and again."""
        if len(self._viewers) >= MAX_VIEWERS:
            return web.Response(status=503, text=f"{MAX_VIEWERS} viewers are the maximum; use /api/throttles or /metrics\n")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        viewer: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING_SNAPSHOTS)
        self._viewers.add(viewer)
        try:
            history, snapshot = await self._first.get()
            await response.write(await _event("history", history) + await _event("snapshot", snapshot))
            while (event := await viewer.get()) is not None:
                await response.write(event)
        except ConnectionError:  # the viewer has left
            pass
        finally:
            self._viewers.discard(viewer)
        return response

    async def _run(self) -> None:
        # Not one of the `BackgroundTasks`: they pause for up to 30 s, and the history has a point for each second.
        while True:
            try:
                await self._send_second()
            except Exception:  # the next second may succeed, and without this task the page would stand still for good
                _log.exception("the live page misses a second", extra={"reason": "live_page"})
            await asyncio.sleep(SNAPSHOT_SECONDS)

    async def _send_second(self) -> None:
        self._source.record_second()
        if self._viewers:
            _, snapshot = await self._source.snapshot_with_history()
            event = await _event("snapshot", snapshot)
            for viewer in self._viewers:
                _offer(viewer, event)


class GatewaySnapshots:
    """Snapshots of one gateway."""

    def __init__(self, view: AdminView) -> None:
        self._view = view
        self._history: deque[Point] = deque(maxlen=HISTORY_SECONDS)
        self._throttled_before: float | None = None

    def record_second(self) -> None:
        view = self._view
        throttled = float(sum(sum(total.counts) for total in view.engine.throttle_totals()))
        before, self._throttled_before = self._throttled_before, throttled
        self._history.append(
            {
                "at": round(view.wall(), 1),
                "muted": view.counters.muted,
                "throttles": throttled - (throttled if before is None else before),
            }
        )

    async def snapshot_with_history(self) -> tuple[list[Point], dict[str, Any]]:
        return list(self._history), await self.snapshot()

    async def snapshot(self) -> dict[str, Any]:
        """Everything on the page, as plain values. Rates are units per second, times ISO 8601 or seconds as named."""
        view = self._view
        wall = view.wall()  # as the rows have the time at which their reading begins
        rows = await view.rows()
        return {**await self.facts(), **await in_slices(ranked(rows, view.effective.places(), wall))}

    async def facts(self) -> dict[str, Any]:
        """The snapshot without the entities."""
        view = self._view
        effective = view.effective
        return {
            "at": iso(view.wall()),
            "weir": weir_version(),
            "not_ready": view.not_ready(),
            "enforce": effective.config.quotas.enforce,
            "connections": view.counters.connections,
            "units": units(),
            "kinds": kinds(),
            "now": self._history[-1] if self._history else None,
            "brokers": [{"id": broker, "address": str(ServerAddress(*at))} for broker, at in sorted(view.brokers().items())],
            "volumes": await view.report_page("volumes"),
            "config": config_facts(effective),
        }

    async def facts_with_history(self) -> dict[str, Any]:
        """The page `/api/facts`, from which a supervisor makes the snapshot of all workers."""
        return {"history": list(self._history), "facts": await self.facts()}


def units() -> dict[str, str]:
    """The unit of each kind. The kinds of `request_rates` have that of `request_rate`."""
    return {kind.name: kind.unit.name for kind in ROW_KINDS}


def kinds() -> dict[str, dict[str, Any]]:
    """The kinds as the live page shows them, in the order of the page. `request_rate.Metadata` is shown as `request_rate`."""
    return {
        kind.name: {
            "title": kind.title,
            "unit": kind.unit.name,
            "prefixes": list(kind.unit.prefixes),
            "in_overview": kind.in_overview,
        }
        for kind in ROW_KINDS
    }


def ranked(rows: Sequence[UsageRow], places: Places, wall: float) -> Steps[dict[str, Any]]:
    """The entities of a snapshot: throttled entities, the longest first, and entities near a limit or a shadow limit.

    `wall` is the time of the rows, in seconds since 1970.
    """
    throttled, top, shadows = Largest(MAX_THROTTLED), Largest(MAX_TOP), Largest(MAX_TOP)
    throttled_count = 0
    rates = dict.fromkeys((kind.name for kind in ROW_KINDS), 0.0)
    for row in rows:
        if is_throttled(row.throttle_left, row.unthrottled_seconds):
            throttled.add((row.throttle_left,), row)
            throttled_count += 1
        if row.rate > 0.0:
            (shadows if row.shadow else top).add((row.used_ratio, row.rate), row)
        if row.kind in rates and not (row.group or row.shadow):  # the members' own rows have the use of a group as well
            rates[row.kind] += row.rate
        yield
    shown: dict[str, Any] = {"rates": rates, "throttled_count": throttled_count}
    for name, table in (("throttled", throttled), ("top", top), ("shadows", shadows)):
        shown[name] = entries = []
        for values in (yield from described(table.rows(), places, wall)):
            entries.append({key: values[source] for key, source in _SHOWN.items()})
            yield
    return shown


class Largest:
    """The `count` rows with the largest keys, gathered row by row, because a sort of thousands of rows takes long."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._heap: list[tuple[tuple[float, ...], int, UsageRow]] = []  # the number keeps the order of rows with equal keys
        self._added = 0

    def add(self, key: tuple[float, ...], row: UsageRow) -> None:
        self._added += 1
        entry = (key, -self._added, row)
        if len(self._heap) < self._count:
            heappush(self._heap, entry)
        elif entry > self._heap[0]:
            heapreplace(self._heap, entry)

    def rows(self) -> list[UsageRow]:
        """The rows, the largest key first."""
        return [row for _, _, row in sorted(self._heap, reverse=True)]


_SHOWN: Final = {
    "ratio": "used_ratio",
    "left": "throttle_left",
    "throttled": "throttled_total",
    "unenforced": "unenforced_total",
    "seconds": "throttle_seconds_total",
    "early": "early_total",
    "since": "throttled_since",
    **{
        name: name
        for name in ("kind", "user", "client_id", "ip", "group", "broker", "level", "source", "limit", "rate", "connections",
                     "key", "set_in", "addresses")
    },
}  # fmt: skip
"""The values of a row on the live page, and the names of the rows of `/api/quotas`."""


async def _event(name: str, value: object) -> bytes:
    return b"".join((f"event: {name}\ndata: ".encode(), *await in_slices(json_parts(value)), b"\n\n"))


def _offer(viewer: asyncio.Queue[bytes | None], event: bytes | None) -> None:
    """Put an event into a viewer's queue; a slow one misses the oldest instead."""
    if viewer.full():
        viewer.get_nowait()
    viewer.put_nowait(event)
