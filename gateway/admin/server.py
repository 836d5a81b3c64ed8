"""The admin server of one gateway: metrics, probes, the live page and JSON."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from gateway.admin.config_answer import config_answer
from gateway.admin.configured import CONFIGURED, configured_rows
from gateway.admin.connection_list import CONNECTIONS, ConnectionList, connections_page
from gateway.admin.entity_page import EXPLAIN, EntityPages, EntityUsage, explain_page
from gateway.admin.explanation import ClientNames, explain_client, with_use
from gateway.admin.forgive import FORGIVE, forgive_page
from gateway.admin.group_list import GROUPS, groups_page
from gateway.admin.http import Page, PageServer, TcpAddress, json_page, readiness, shared, shared_metrics
from gateway.admin.live import GatewaySnapshots, LiveFeed, units
from gateway.admin.metrics.registry import exposition
from gateway.admin.metrics.scrape import Scrape
from gateway.admin.pieces import Pieces
from gateway.admin.rows import EARLY, described
from gateway.admin.single_flight import SingleFlight
from gateway.admin.view import AdminView
from gateway.features.catalogue import FEATURES
from gateway.log import iso
from gateway.time_slices import in_slices

ACTIVE: Final = "/api/active"
ACTIVE_SECONDS: Final = 10.0


class AdminServer(PageServer):
    """Serves `view` on `at`. With port 0 the system chooses one; `port` has it after `start`."""

    def __init__(self, view: AdminView, at: TcpAddress | Path) -> None:
        self._view = view
        snapshots = GatewaySnapshots(view)
        pages: dict[str, Page] = {
            "/metrics": shared_metrics(self._metrics),
            "/readyz": self._readyz,
            "/api/quotas": shared(self._quotas),
            CONFIGURED: shared(self._configured),
            "/api/throttles": shared(self._throttles),
            "/api/config": shared(self._config),
            "/api/facts": shared(self._facts),
            ACTIVE: shared(self._active),
        }
        self._shared_usage = SingleFlight(self._usage)
        pages |= EntityPages(self._shared_usage.get).pages() | {EXPLAIN: explain_page(self._explain)}
        self._connections = ConnectionList(view.sessions, view.monotonic, view.wall)
        pages[CONNECTIONS] = connections_page(lambda query, _: self._connections.answer(query))
        pages |= {f"/api/{feature.page}": self._report(feature.page) for feature in FEATURES if feature.page}
        pages[GROUPS] = groups_page(partial(self._reported, "groups"))
        self._snapshots = snapshots
        actions = {FORGIVE: forgive_page(view.forgive, lambda: view.effective.config)}
        super().__init__(pages, LiveFeed(snapshots), at, lambda: view.effective.config.admin.allowed_hosts, actions=actions)

    async def _metrics(self, accept: str) -> web.Response:
        view = self._view
        scrape = Scrape.of(view, await view.rows(), await in_slices(view.reports()))
        pieces, content_type = await in_slices(exposition(scrape, accept))
        return web.Response(body=Pieces(pieces, content_type))

    async def _readyz(self, _: web.Request) -> web.Response:
        return readiness(self._view.not_ready())

    async def _quotas(self) -> web.Response:
        usage = await self._usage()
        return await self._json(
            {
                "enforce": usage.enforce,
                "units": units(),
                "shared": self._view.effective.config.sharing is not None,
                "rows": usage.rows,
            }
        )

    async def _configured(self) -> web.Response:
        # Thousands of entities take long, so a thread lists them.
        rows = await asyncio.to_thread(configured_rows, self._view.effective.places(), self._view.dynamic())
        return await self._json({"rows": rows})

    async def _throttles(self) -> web.Response:
        usage = await self._usage(throttled_only=True)
        usage.rows.sort(key=lambda row: -float(row["throttle_left"]))
        return await self._json(
            {
                "enforce": usage.enforce,
                "muted_connections": self._view.counters.muted,
                "early": EARLY,
                "rows": usage.rows,
            }
        )

    async def _usage(self, *, throttled_only: bool = False) -> EntityUsage:
        view = self._view
        wall = view.wall()  # as the rows have the time at which their reading begins
        rows = await view.rows()
        if throttled_only:
            rows = [row for row in rows if row.throttle_left > 0.0]
        places = view.effective.places()
        return EntityUsage(await in_slices(described(rows, places, wall)), places.config.quotas.enforce, iso(wall))

    async def _active(self) -> web.Response:
        """For a supervisor, which looks at it every few seconds."""
        view = self._view
        return await json_page({"rows": await in_slices(view.engine.active_rows(view.monotonic(), ACTIVE_SECONDS))})

    async def _explain(self, client: ClientNames, _: str) -> dict[str, Any]:
        # Thousands of entities take long, so a thread looks through them.
        answer = await asyncio.to_thread(explain_client, client, self._view.effective.places(), self._view.dynamic())
        return with_use(answer, (await self._shared_usage.get()).rows)

    def _report(self, page: str) -> Page:
        async def answer() -> web.Response:
            return await self._json(await self._reported(page))

        return shared(answer)

    async def _reported(self, page: str) -> dict[str, Any]:
        report = await self._view.report_page(page)
        return {"configured": False} if report is None else {"configured": True, **report}

    async def _config(self) -> web.Response:
        return await self._json(await config_answer(self._view.effective))

    async def _facts(self) -> web.Response:
        return await json_page(await self._snapshots.facts_with_history())

    async def _json(self, answer: dict[str, Any]) -> web.Response:
        return await json_page({"generated_at": iso(self._view.wall()), **answer})
