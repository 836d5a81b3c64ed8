"""The admin server: metrics, health, and what operators and `weir quotas` ask as JSON. It changes nothing."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from aiohttp import web

from gateway.observe.effective import ReloadResult
from gateway.observe.log import iso
from gateway.observe.metrics import Scrape, exposition
from gateway.observe.view import AdminView
from gateway.quotas.kinds import KINDS
from gateway.quotas.volumes.report import VolumesReport

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Weir</title></head><body>
<h1>Weir</h1>
<ul>
{links}
</ul>
</body></html>
"""


class AdminBindError(Exception):
    """The admin server's address can't be bound. The message names the key, the value and the remedy."""


class AdminServer:
    """Serves `view` on `host` and `port`; with port 0 the system chooses one, which `port` tells after `start`."""

    def __init__(self, view: AdminView, host: str, port: int) -> None:
        self._view = view
        self._host = host
        self.port = port
        self._runner: web.AppRunner | None = None
        self._pages: dict[str, tuple[str, Callable[[web.Request], Awaitable[web.Response]]]] = {
            "/metrics": ("metrics for Prometheus", self._metrics),
            "/livez": ("200 while the process answers", self._livez),
            "/readyz": ("200 while clients should be sent here, else 503 and the reason", self._readyz),
            "/api/quotas": ("who uses how much of which quota", self._quotas),
            "/api/throttles": ("who is being throttled now", self._throttles),
            "/api/volumes": ("how full the cluster's volumes are, and what producers may do", self._volumes),
            "/api/config": ("the config in effect and its last reload", self._config),
        }

    async def start(self) -> None:
        """Bind and serve. Raises AdminBindError."""
        app = web.Application()
        app.router.add_get("/", self._index)
        for path, (_, handler) in self._pages.items():
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
        self._runner = runner
        self.port = runner.addresses[0][1]

    async def stop(self) -> None:
        """Close all of it; without effect where it is not running."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _index(self, _: web.Request) -> web.Response:
        links = "\n".join(f'<li><a href="{path}">{path}</a> {about}</li>' for path, (about, _) in self._pages.items())
        return web.Response(text=_PAGE.format(links=links), content_type="text/html")

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

    async def _volumes(self, _: web.Request) -> web.Response:
        report = self._view.volumes()
        return self._json({"configured": False} if report is None else {"configured": True, **_volumes_json(report)})

    async def _config(self, _: web.Request) -> web.Response:
        effective = self._view.effective
        return self._json(
            {
                "version": effective.version,
                "loaded_at": iso(effective.loaded_at),
                "config": effective.config.model_dump(mode="json"),
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


def _volumes_json(report: VolumesReport) -> dict[str, Any]:
    verdict = report.verdict
    return {
        "state": verdict.state.value,
        "factor": verdict.factor,
        "reason": verdict.reason,
        "why": verdict.why,
        "enforced": report.enforced,
        "delay_seconds": report.delay_seconds,
        "unknown": [{"broker": broker, "usage": what} for broker, what in verdict.unknown],
        "volumes": [
            {
                "broker": row.broker,
                "volume": row.volume.name,
                "capacity_bytes": row.volume.capacity,
                "consumed_bytes": row.volume.consumed,
                "soft": {"type": row.soft.type.value, "level": row.soft.level},
                "hard": {"type": row.hard.type.value, "level": row.hard.level},
                "factor": 1.0 - row.throttle,
            }
            for row in verdict.rows
        ],
        "reader": {"connected": report.reader_connected, "problem": report.reader_problem},
        "publisher": {"connected": report.publisher_connected, "problem": report.publisher_problem}
        if report.publishes
        else None,
        "source_problem": report.source_problem,
        "skipped": dict(report.skipped),
    }


def _reload(result: ReloadResult) -> dict[str, Any]:
    return {
        "result": "success" if result.success else "failure",
        "at": iso(result.at),
        "changes": list(result.changes),
        "problems": [asdict(problem) for problem in result.problems],
    }
