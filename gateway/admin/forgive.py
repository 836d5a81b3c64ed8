"""`POST /api/quotas/forgive`: the only admin request that changes something. Only the gateway's own host may send it."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final

from aiohttp import web

from gateway.admin.http import Page
from gateway.config.endpoints import ServerAddress, is_loopback, is_wildcard
from gateway.config.model import AdminConfig, WeirConfig
from gateway.quotas.addresses import address_of
from gateway.quotas.debts import KEYS, ClearedDebt, DebtFilter, DebtFilterError

FORGIVE: Final = "/api/quotas/forgive"

MAX_BODY_BYTES: Final = 128 * 1024
"""A client-id may have 32 767 bytes in Kafka, and JSON may escape each byte with six characters."""

_OF_PROXIES: Final = ("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP")
"""Headers that HTTP proxies add. Such a request comes from a process of this host, and its sender may be anywhere."""

Forgive = Callable[[DebtFilter], Sequence[ClearedDebt]]

_log = logging.getLogger("weir.admin")


async def read_filter(request: web.Request, config: WeirConfig) -> DebtFilter:
    """Raises web.HTTPException with a text for the operator.

    The admin port knows no users, so only processes of its own host may change something. The content type excludes browsers
    on this host: pages of other sites may not send JSON without a preflight request.
    """
    if not _is_of_this_host(request, config.admin.host):
        raise web.HTTPForbidden(
            text=f"{request.remote} may not clear debts: run `weir quotas forgive` on the gateway's own host (or in its pod),"
            f" with --admin http://{_own_address(config.admin)}\n"
        )
    if (header := next((name for name in _OF_PROXIES if name in request.headers), None)) is not None:
        raise web.HTTPForbidden(
            text=f"the header {header} says that a proxy passes this on, for a sender that may be anywhere. Run"
            " `weir quotas forgive` on the gateway's own host (or in its pod), with the admin port itself in --admin\n"
        )
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="send the content type application/json\n")
    body = b""
    while chunk := await request.content.readany():  # one read may return only a part of the body
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, len(body))
    try:
        wanted = DebtFilter.parse(json.loads(body))
        wanted.check_group({group.name: None for group in config.quotas.groups})
    except DebtFilterError as error:
        raise web.HTTPBadRequest(text=f"{error}\n") from None
    except (ValueError, RecursionError) as error:
        raise web.HTTPBadRequest(
            text=f"the body is not JSON: {error}: send an object with some of {', '.join(KEYS)}\n"
        ) from None
    return wanted


def _is_of_this_host(request: web.Request, bound: str) -> bool:
    """True for Unix sockets, loopback addresses and, unless `bound` is a wildcard, this host's address as the sender.

    With a wildcard, loopback addresses are enough. There the rule would be unsafe: rootless containers that publish the port
    may give every sender the container's own address.
    """
    if request.remote is None:  # the peer has reset its connection, and may be anywhere
        return False
    if not request.remote or is_loopback(request.remote):  # a Unix socket's peer has an empty address
        return True
    name = request.get_extra_info("sockname")
    return not is_wildcard(bound) and name is not None and address_of(request.remote) == address_of(name[0])


def _own_address(admin: AdminConfig) -> ServerAddress:
    loopback = "::1" if ":" in admin.host else "127.0.0.1"
    return ServerAddress(loopback if is_wildcard(admin.host) else admin.host, admin.port)


def forgive_page(forgive: Forgive, config: Callable[[], WeirConfig]) -> Page:
    """`config` returns the config in effect, for the names of groups."""

    async def page(request: web.Request) -> web.Response:
        cleared = forgive(await read_filter(request, config()))
        for debt in cleared:
            _log.info("an operator cleared a debt of %.1f s", debt.seconds, extra=asdict(debt))
        return web.json_response({"cleared": [asdict(debt) for debt in cleared]})

    return page
