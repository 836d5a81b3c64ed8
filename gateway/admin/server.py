"""The admin server of one gateway: metrics, probes, the live page and JSON."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from gateway.admin.config_answer import config_answer
from gateway.admin.configured import CONFIGURED, configured_rows
from gateway.admin.connection_list import CONNECTIONS, ConnectionList, connections_page
from gateway.admin.entity_page import EXPLAIN, explain_page
from gateway.admin.explanation import ClientNames, Explanations, with_use
from gateway.admin.forgive import FORGIVE, forgive_page
from gateway.admin.group_list import GROUPS, groups_page
from gateway.admin.http import Page, PageServer, TcpAddress, answered, json_page, readiness, shared, shared_metrics
from gateway.admin.json_text import JsonObject
from gateway.admin.live import GatewaySnapshots, LiveFeed
from gateway.admin.metrics.registry import exposition
from gateway.admin.metrics.scrape import Scrape
from gateway.admin.pieces import Pieces
from gateway.admin.single_flight import SingleFlight
from gateway.admin.usage_pages import UsagePages
from gateway.admin.view import AdminView
from gateway.features.catalogue import FEATURES
from gateway.time_slices import in_slices

ACTIVE: Final = "/api/active"
ACTIVE_SECONDS: Final = 10.0


class AdminServer(PageServer):
    """Serves `view` on `at`. With port 0 the system chooses one; `port` has it after `start`."""

    def __init__(self, view: AdminView, at: TcpAddress | Path) -> None:
        self._view = view
        self._snapshots = GatewaySnapshots(view)
        pages: dict[str, Page] = {
            "/metrics": shared_metrics(self._metrics),
            "/readyz": self._readyz,
            CONFIGURED: answered(self._configured, view.wall),
            "/api/config": answered(lambda: config_answer(view.effective), view.wall),
            "/api/facts": shared(self._facts),
            ACTIVE: shared(self._active),
        }
        self._explanations = SingleFlight(self._prepared)
        self._usage = UsagePages(view.rows, self._muted, view.effective, view.wall)
        pages |= self._usage.pages() | {EXPLAIN: explain_page(self._explain)}
        self._connections = ConnectionList(view.sessions, view.monotonic, view.wall)
        pages[CONNECTIONS] = connections_page(lambda query, _: self._connections.answer(query))
        reports = {feature.page: partial(self._reported, feature.page) for feature in FEATURES if feature.page}
        pages |= {f"/api/{page}": answered(report, view.wall) for page, report in reports.items()}
        pages[GROUPS] = groups_page(reports["groups"])
        actions = {FORGIVE: forgive_page(view.forgive, lambda: view.effective.config)}
        super().__init__(
            pages, LiveFeed(self._snapshots), at, lambda: view.effective.config.admin.allowed_hosts, actions=actions
        )

    async def _metrics(self, accept: str) -> web.Response:
        view = self._view
        scrape = Scrape.of(view, await view.rows(), await in_slices(view.reports()))
        pieces, content_type = await in_slices(exposition(scrape, accept))
        return web.Response(body=Pieces(pieces, content_type))

    async def _readyz(self, _: web.Request) -> web.Response:
        return readiness(self._view.not_ready())

    async def _configured(self) -> JsonObject:
        # Thousands of entities take long, so a thread lists them.
        rows = await asyncio.to_thread(configured_rows, self._view.effective.places(), self._view.dynamic())
        return {"rows": rows}

    async def _muted(self) -> int:
        return self._view.counters.muted

    async def _active(self) -> web.Response:
        """For a supervisor, which looks at it every few seconds."""
        view = self._view
        return await json_page({"rows": await in_slices(view.engine.active_rows(view.monotonic(), ACTIVE_SECONDS))})

    async def _prepared(self) -> Explanations:
        # Thousands of entities take long, so a thread looks through them.
        return await asyncio.to_thread(Explanations, self._view.effective.places(), self._view.dynamic())

    async def _explain(self, client: ClientNames, _: str) -> dict[str, Any]:
        explanations = await self._explanations.get()
        answer = await asyncio.to_thread(explanations.of, client)
        return with_use(answer, (await self._usage.usage()).rows)

    async def _reported(self, page: str) -> JsonObject:
        report = await self._view.report_page(page)
        return {"configured": False} if report is None else {"configured": True, **report}

    async def _facts(self) -> web.Response:
        return await json_page(await self._snapshots.facts_with_history())
