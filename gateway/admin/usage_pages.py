"""The pages of the use of buckets, at one gateway or at all workers: `/api/quotas`, `/api/throttles` and those of entities."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from aiohttp import web

from gateway import clock
from gateway.admin.entity_page import EntityPages, EntityUsage
from gateway.admin.http import Page, json_page, shared
from gateway.admin.live import units
from gateway.admin.rows import EARLY, described
from gateway.admin.single_flight import SingleFlight
from gateway.config.effective import EffectiveConfig
from gateway.quotas.snapshot import UsageRow
from gateway.time_slices import in_slices

THROTTLES: Final = "/api/throttles"


class UsagePages:
    """`rows` reads the use of all buckets, `muted` the number of muted connections. `wall` is in seconds since 1970."""

    def __init__(
        self,
        rows: Callable[[], Awaitable[list[UsageRow]]],
        muted: Callable[[], Awaitable[int]],
        effective: EffectiveConfig,
        wall: Callable[[], float] = clock.wall,
    ) -> None:
        self._rows = rows
        self._muted = muted
        self._effective = effective
        self._wall = wall
        self._shared = SingleFlight(self._usage)

    def pages(self) -> dict[str, Page]:
        own = {"/api/quotas": shared(self._quotas), THROTTLES: shared(self._throttles)}
        return own | EntityPages(self.usage).pages()

    async def usage(self) -> EntityUsage:
        """The use of all buckets. Simultaneous requests share one reading."""
        return await self._shared.get()

    async def _usage(self) -> EntityUsage:
        wall = self._wall()  # as the rows have the time at which their reading begins
        return await self._described(await self._rows(), wall)

    async def _described(self, rows: Iterable[UsageRow], wall: float) -> EntityUsage:
        places = self._effective.places()
        return EntityUsage(await in_slices(described(rows, places, wall)), places.config.quotas.enforce, clock.iso(wall))

    async def _quotas(self) -> web.Response:
        usage = await self._usage()
        return await json_page(
            {
                "generated_at": usage.at,
                "enforce": usage.enforce,
                "units": units(),
                "shared": self._effective.config.sharing is not None,
                "rows": usage.rows,
            }
        )

    async def _throttles(self) -> web.Response:
        wall = self._wall()
        muted, rows = await asyncio.gather(self._muted(), self._rows())
        throttled = [row for row in rows if row.throttle_left > 0.0]
        throttled.sort(key=lambda row: -row.throttle_left)
        usage = await self._described(throttled, wall)
        return await json_page(
            {
                "generated_at": usage.at,
                "enforce": usage.enforce,
                "muted_connections": muted,
                "early": EARLY,
                "rows": usage.rows,
            }
        )
