"""The admin server: metrics, health, and what operators and `weir quotas` ask as JSON. It changes nothing."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib.resources import files
from typing import Any, Final

from aiohttp import web

from gateway.observe.effective import ReloadResult
from gateway.observe.live import LiveFeed
from gateway.observe.log import iso
from gateway.observe.metrics import Scrape, exposition
from gateway.observe.view import AdminView
from gateway.observe.volumes_json import volumes_json
from gateway.quotas.kinds import KINDS

_PAGE: Final = files("gateway.observe").joinpath("dashboard.html")


class AdminBindError(Exception):
    """The admin server's address can't be bound. The message names the key, the value and the remedy."""


class AdminServer:
    """Serves `view` on `host` and `port`; with port 0 the system chooses one, which `port` tells after `start`."""

    def __init__(self, view: AdminView, host: str, port: int) -> None:
        self._view = view
        self._host = host
        self.port = port
        self._live = LiveFeed(view)
        self._runner: web.AppRunner | None = None
        self._pages: dict[str, Callable[[web.Request], Awaitable[web.Response]]] = {
            "/metrics": self._metrics,
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/api/quotas": self._quotas,
            "/api/throttles": self._throttles,
            "/api/topics": self._topics,
            "/api/volumes": self._volumes,
            "/api/config": self._config,
        }

    async def start(self) -> None:
        """Bind and serve. Raises AdminBindError."""
        app = web.Application()
        app.router.add_get("/", self._index)
        app.router.add_get("/api/stream", self._live.stream)
        for path, handler in self._pages.items():
            app.router.add_get(path, handler)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self.port).start()
        except OSError as error:
            await runner.cleanup()
            raise AdminBindError(
                f"admin.port: {self._host}:{self.port} can't be bound: {error.strerror or error}"
                " — stop what listens there, or choose another admin.host and admin.port"
            ) from error
        self._live.start()
        self._runner = runner
        self.port = runner.addresses[0][1]

    async def stop(self) -> None:
        """Close all of it; without effect where it is not running."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await self._live.stop()
            await runner.cleanup()

    async def _index(self, _: web.Request) -> web.Response:
        page = await asyncio.to_thread(_PAGE.read_text, encoding="utf-8")
        return web.Response(text=page, content_type="text/html", headers={"Cache-Control": "no-cache"})

    async def _metrics(self, request: web.Request) -> web.Response:
        scrape = Scrape.of(self._view)
        # Thousands of samples take a tenth of a second to write down, which connections should not wait for.
        body, content_type = await asyncio.to_thread(exposition, scrape, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="live\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._view.not_ready()
        return web.Response(text="ready\n") if reason is None else web.Response(status=503, text=f"{reason}\n")

    async def _quotas(self, _: web.Request) -> web.Response:
        view = self._view
        rows = [asdict(row) for row in view.engine.snapshot(view.monotonic())]
        return self._json({"enforce": view.effective.config.quotas.enforce, "units": self._units(), "rows": rows})

    async def _throttles(self, _: web.Request) -> web.Response:
        view = self._view
        rows = [row for row in view.engine.snapshot(view.monotonic()) if row.throttle_left > 0]
        rows.sort(key=lambda row: row.throttle_left, reverse=True)
        return self._json(
            {
                "enforce": view.effective.config.quotas.enforce,
                "muted_connections": view.counters.muted,
                "rows": [asdict(row) for row in rows],
            }
        )

    async def _topics(self, _: web.Request) -> web.Response:
        report = self._view.topics()
        return self._json({"configured": False} if report is None else {"configured": True, **asdict(report)})

    async def _volumes(self, _: web.Request) -> web.Response:
        report = self._view.volumes()
        return self._json({"configured": False} if report is None else {"configured": True, **volumes_json(report)})

    async def _config(self, _: web.Request) -> web.Response:
        effective = self._view.effective
        return self._json(
            {
                "version": effective.version,
                "loaded_at": iso(effective.loaded_at),
                "config": effective.config.model_dump(mode="json", by_alias=True),
                "warnings": effective.config.warnings(),
                "reloads": dict(effective.reloads),
                "last_reload": None if effective.last is None else _reload(effective.last),
            }
        )

    def _units(self) -> dict[str, str]:
        return {name: kind.unit for name, kind in KINDS.items()}

    def _json(self, answer: dict[str, Any]) -> web.Response:
        body = {"generated_at": iso(self._view.wall()), **answer}
        return web.json_response(body, dumps=_strict_json, headers={"Cache-Control": "no-store"})


def _strict_json(value: object) -> str:
    """JSON as the standard has it: a NaN or an infinity raises ValueError instead of breaking every other parser."""
    return json.dumps(value, allow_nan=False)


def _reload(result: ReloadResult) -> dict[str, Any]:
    return {
        "result": "success" if result.success else "failure",
        "at": iso(result.at),
        "changes": list(result.changes),
        "problems": [asdict(problem) for problem in result.problems],
    }
