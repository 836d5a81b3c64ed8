"""The Host header of admin requests, against DNS rebinding.

A web page's own name may resolve to the gateway's address. The browser then treats the admin server as part of that page's
site, and lets the page read it. Only the Host header identifies such a request: the header carries the page's name.
"""

import logging
import socket
import threading
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from gateway.config.endpoints import answers_to, plain_name

PROBES: Final = frozenset({"/livez", "/readyz"})

_LONGEST_SHOWN: Final = 255

_log = logging.getLogger("weir.admin")


class HostCheck:
    """The names that the admin server answers to.

    `bound` is the host that the server listens on; `allowed` gives `admin.allowed_hosts` as it is now. Always allowed: any IP
    address, no Host header at all, loopback names, `bound`, and the machine's own names. If other machines can reach `bound`,
    names without a dot are allowed as well: they can't be registered, and containers call each other by them.
    """

    def __init__(self, bound: str, allowed: Callable[[], Collection[str]]) -> None:
        self._bound = bound
        self._allowed = allowed
        self._own = frozenset({plain_name(socket.gethostname())})

    def learn_full_name(self) -> threading.Thread:
        """Look up the machine's name with its domain, in a thread of its own because DNS may not answer."""

        def learn() -> None:
            self._own |= {plain_name(socket.getfqdn())}

        thread = threading.Thread(target=learn, name="look up the full host name", daemon=True)
        thread.start()
        return thread

    def allows(self, host: str) -> bool:
        name = plain_name(_without_port(host))
        return not name or name in self._own or answers_to(name, self._bound, self._allowed())

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answers 421 to unknown names. A probe keeps its status without the reason, because reasons may name brokers."""
        refused = next((host for host in request.headers.getall(hdrs.HOST, ()) if not self.allows(host)), None)
        if refused is None:
            return await handler(request)
        if request.path in PROBES:
            return web.Response(status=(await handler(request)).status)
        shown = repr(refused[:_LONGEST_SHOWN])
        _log.warning(
            "admin request refused: the Host header names %s — if this name is the server's own, add it to admin.allowed_hosts",
            shown,
            extra={"reason": "admin_host", "peer": f"{request.remote}:0"},
        )
        return web.Response(
            status=HTTPStatus.MISDIRECTED_REQUEST,
            text=f"Host: {shown} is not a name of this admin server. A web page of another site could use such a name to read"
            " quotas and users (DNS rebinding). Ask by IP address or localhost, or add the name to admin.allowed_hosts.\n",
        )


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]
