"""The server behind the admin port, whatever its pages tell of: one gateway, or several."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from gateway.binding import why_not
from gateway.observe.live import LiveFeed

_PAGE: Final = files("gateway.observe").joinpath("dashboard.html")

Address = tuple[str, int]
Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminBindError(Exception):
    """The admin server's address can't be bound. The message names the key, the value and the remedy."""


class PageServer:
    """Serves `pages` by path, the live page and `/livez` on a host and port, or on a Unix socket."""

    def __init__(self, pages: Mapping[str, Page], live: LiveFeed, at: Address | Path) -> None:
        self._pages = pages
        self._live = live
        self._at = at
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port that it listens on, which the system has chosen where 0 was asked for."""
        if self._runner is not None and isinstance(self._at, tuple):
            return int(self._runner.addresses[0][1])
        return self._at[1] if isinstance(self._at, tuple) else 0

    async def start(self) -> None:
        """Bind and serve. Raises AdminBindError."""
        app = web.Application()
        app.router.add_get("/", self._index)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/api/stream", self._live.stream)
        for path, page in self._pages.items():
            app.router.add_get(path, page)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await _site(runner, self._at).start()
        except OSError as error:
            await runner.cleanup()
            if not isinstance(self._at, tuple):
                raise
            host, port = self._at
            raise AdminBindError(f"admin.port: {host}:{port} can't be bound: {why_not(error, 'admin.host')}") from error
        self._live.start()
        self._runner = runner

    async def stop(self) -> None:
        """Close all of it; without effect where it is not running."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await self._live.stop()
            await runner.cleanup()

    async def _index(self, _: web.Request) -> web.Response:
        page = await asyncio.to_thread(_PAGE.read_text, encoding="utf-8")
        return web.Response(text=page, content_type="text/html", headers={"Cache-Control": "no-cache"})

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="live\n")


def json_page(body: Mapping[str, Any]) -> web.Response:
    """An answer that nobody keeps."""
    return web.json_response(body, dumps=_strict_json, headers={"Cache-Control": "no-store"})


def _site(runner: web.AppRunner, at: Address | Path) -> web.BaseSite:
    return web.TCPSite(runner, *at) if isinstance(at, tuple) else web.UnixSite(runner, at)


def _strict_json(value: object) -> str:
    """JSON as the standard has it: a NaN or an infinity raises ValueError instead of breaking every other parser."""
    return json.dumps(value, allow_nan=False)
