"""The HTTP server of the admin port, for the pages of one gateway or of several workers."""

import logging
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gateway import clock
from gateway.admin.host_check import HostCheck
from gateway.admin.idle_connections import IdleConnections
from gateway.admin.json_text import JsonObject, json_parts
from gateway.admin.live import LiveFeed
from gateway.admin.pieces import Pieces, in_pieces
from gateway.admin.query import NoWorkerAnswersError, QueryError, check_names
from gateway.admin.single_flight import SingleFlight
from gateway.binding import BindError, why_not
from gateway.config.problems import nearest
from gateway.time_slices import in_slices

_PAGE: Final = files("gateway.admin").joinpath("dashboard.html")

_SCRIPT: Final = re.compile(r"<script>(.*?)</script>", re.DOTALL)

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Defaults for every answer, because answers name users, and no page except the live page may run or be framed."""

_LONGEST_CAUSE: Final = 200

_TEXT, _OPEN_METRICS = "text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0"


class BadRequests(logging.Filter):
    """Turns aiohttp's error about invalid HTTP into a short warning with a reason and a peer, so that repetitions are folded.

    aiohttp logs a traceback for each such request: 20 bytes of a stranger would add 1.5 KB to the log.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            remote = record.args[0] if isinstance(record.args, tuple) and record.args else ""
            record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
            record.msg, record.args = "admin request refused: %s", (" ".join(str(error).split())[:_LONGEST_CAUSE],)
            record.exc_info = None
            record.reason, record.peer = "admin_bad_request", f"{remote}:0"
        return True


_BAD_REQUESTS: Final = BadRequests()

TcpAddress = tuple[str, int]
Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PageServer:
    """Serves `pages` by path, `/livez` and, with a `live` feed, the live page, on a host and port or on a Unix socket.

    On a port, requests must name an allowed host (`HostCheck`); `allowed_hosts` returns the current configured names.
    `port_key` is the config key for error messages. `actions` are POST requests by path.
    """

    def __init__(
        self,
        pages: Mapping[str, Page],
        live: LiveFeed | None,
        at: TcpAddress | Path,
        allowed_hosts: Callable[[], Collection[str]],
        port_key: str = "admin.port",
        actions: Mapping[str, Page] = MappingProxyType({}),
    ) -> None:
        self._hosts = HostCheck(at[0], allowed_hosts) if isinstance(at, tuple) else None
        self._pages = pages
        self._port_key = port_key
        self._actions = actions
        self._live = live
        self._at = at
        self._runner: web.AppRunner | None = None
        self._idle = IdleConnections()

    @property
    def port(self) -> int:
        """The bound port; if 0 was requested, the system has chosen one."""
        if self._runner is not None and isinstance(self._at, tuple):
            return int(self._runner.addresses[0][1])
        return self._at[1] if isinstance(self._at, tuple) else 0

    async def start(self) -> None:
        """Bind and serve. Raises BindError."""
        checks = [] if self._hosts is None else [self._hosts.middleware]
        app = web.Application(middlewares=[self._idle.middleware, *checks, self._name_pages, explain_errors])
        app.on_response_prepare.append(_protect)
        app.router.add_get("/livez", self._livez)
        if self._live is not None:
            _live_page()  # read the file before clients come
            app.router.add_get("/", self._index)
            app.router.add_get("/api/stream", self._live.stream, allow_head=False)
        for path, page in self._pages.items():
            app.router.add_get(path, page)
        for path, action in self._actions.items():
            app.router.add_post(path, action)
        logging.getLogger("aiohttp.server").addFilter(_BAD_REQUESTS)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await _site(runner, self._at).start()
        except OSError as error:
            await runner.cleanup()
            if not isinstance(self._at, tuple):
                raise
            host, port = self._at
            raise BindError(f"{self._port_key}: {host}:{port} can't be bound: {why_not(error, 'admin.host')}") from error
        if runner.server is not None:
            self._idle.started(runner.server)
        if self._hosts is not None:
            self._hosts.learn_full_name()
        if self._live is not None:
            self._live.start()
        self._runner = runner

    async def stop(self) -> None:
        """Close the server. No effect if it is not running."""
        runner, self._runner = self._runner, None
        self._idle.stop()
        if runner is not None:
            if self._live is not None:
                await self._live.stop()
            await runner.cleanup()

    @web.middleware
    async def _name_pages(self, request: web.Request, handler: Page) -> web.StreamResponse:
        """Answers 404 with the page that the client probably means, or with all pages."""
        if isinstance(request.match_info.http_exception, web.HTTPNotFound):
            pages = sorted({"/livez", *self._pages, *self._actions})
            meant = nearest(request.path[:_LONGEST_CAUSE], pages)
            remedy = f"did you mean {meant}?" if meant else f"the pages are {', '.join(pages)}"
            raise web.HTTPNotFound(text=f"there is no page {request.path[:_LONGEST_CAUSE]!r}: {remedy}\n")
        return await handler(request)

    async def _index(self, _: web.Request) -> web.Response:
        page, policy = _live_page()
        return web.Response(text=page, content_type="text/html", headers={"Content-Security-Policy": policy})

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="live\n")


def shared(make: Callable[[], Awaitable[web.Response]]) -> Page:
    """A page without parameters that simultaneous requests share; see `SingleFlight`."""
    made = _shared(make)

    async def page(request: web.Request) -> web.StreamResponse:
        check_names(request.query, ())
        return await made(request)

    return page


def answered(answer: Callable[[], Awaitable[JsonObject]], wall: Callable[[], float] = clock.wall) -> Page:
    """The page of a JSON answer, with its time from `wall`. Simultaneous requests share it."""

    async def make() -> web.Response:
        return await json_page({"generated_at": clock.iso(wall()), **await answer()})

    return shared(make)


def _shared(make: Callable[[], Awaitable[web.Response]]) -> Page:
    flight = SingleFlight(make)

    async def page(_: web.Request) -> web.Response:
        made = await flight.get()
        return web.Response(body=made.body, status=made.status, headers=made.headers)

    return page


def shared_metrics(make: Callable[[str], Awaitable[web.Response]]) -> Page:
    """The same for metrics in two formats. `make` takes the Accept header of one of them. A scraper may have parameters."""
    text, open_metrics = _shared(partial(make, _TEXT)), _shared(partial(make, _OPEN_METRICS))

    async def page(request: web.Request) -> web.StreamResponse:
        accept = request.headers.get("Accept", "")
        return await (open_metrics if "application/openmetrics-text" in accept else text)(request)

    return page


async def json_page(body: JsonObject) -> web.Response:
    """An answer as JSON, with dataclasses as objects."""
    parts = await in_slices(json_parts(body))
    return web.Response(body=Pieces(await in_slices(in_pieces(parts)), "application/json; charset=utf-8"))


def readiness(problem: str | None) -> web.Response:
    """The answer of `/readyz`. `problem` is the reason if balancers should send no clients, otherwise None."""
    return web.Response(text="ready\n") if problem is None else web.Response(status=503, text=f"{problem}\n")


@web.middleware
async def explain_errors(request: web.Request, handler: Page) -> web.StreamResponse:
    """Answers a request whose page raises QueryError or NoWorkerAnswersError."""
    try:
        return await handler(request)
    except QueryError as error:
        raise web.HTTPBadRequest(text=f"{error}\n") from None
    except NoWorkerAnswersError:
        raise web.HTTPServiceUnavailable(text="no worker answers\n") from None


async def _protect(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)


@cache
def _live_page() -> tuple[str, str]:
    """The page and its Content-Security-Policy: its own scripts, and none of other origins."""
    page = _PAGE.read_text(encoding="utf-8")
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in _SCRIPT.findall(page))
    return page, (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _site(runner: web.AppRunner, at: TcpAddress | Path) -> web.BaseSite:
    return web.TCPSite(runner, *at) if isinstance(at, tuple) else web.UnixSite(runner, at)
