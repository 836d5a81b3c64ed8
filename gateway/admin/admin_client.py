"""Asks the admin server of a running gateway, and explains a failure to the operator."""

import os
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import aiohttp

from gateway.admin.json_text import JsonObject
from gateway.terminal_text import printable
from gateway.version import weir_version

_TIMEOUT: Final = aiohttp.ClientTimeout(total=15)
"""Seconds for an answer. The supervisor waits for a silent worker before it answers (`ASK_SECONDS`), but not as long."""
_REFUSALS: Final = frozenset(
    {HTTPStatus.MISDIRECTED_REQUEST, HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.SERVICE_UNAVAILABLE}
)
"""Answers with a remedy in their text."""
_REMEDY: Final = "start the gateway, or name its admin.host and admin.port with --admin"
_BUILD: Final = re.compile(r'^weir_build_info\{version="([^"]+)"\}', re.MULTILINE)
_UNKNOWN: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


class AdminUnreachableError(Exception):
    """No answer from an admin server. The message names the URL and the remedy. It is printable: another server may answer."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


async def ask(
    admin: str,
    path: str = "/api/quotas",
    holds: str = "rows",
    body: Mapping[str, str] | None = None,
    query: Sequence[tuple[str, str]] | None = None,
) -> JsonObject:
    """Send a GET, or a POST of `body`. The answer has a list under the name `holds`. Raises AdminUnreachableError."""
    url = f"{admin.rstrip('/')}{path}"
    method = "GET" if body is None else "POST"
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as session,
            session.request(method, url, json=body, params=query) as response,
        ):
            if response.status in _REFUSALS:
                raise AdminUnreachableError(f"{url} refuses the request: {(await response.text()).strip()}")
            if response.status == HTTPStatus.NOT_FOUND and (version := await _version(session, admin)):
                raise AdminUnreachableError(
                    f"{url} is no page of this gateway. It has version {version}, which may be older than this command"
                    f" ({weir_version()}) — upgrade the gateway, or use the commands of its version"
                )
            response.raise_for_status()
            answer = await response.json()
            if not isinstance(answer, dict) or not isinstance(answer.get(holds), list):
                raise AdminUnreachableError(f"{url} answers, but not as Weir does — name Weir's admin address with --admin")
            return answer
    except (aiohttp.ClientResponseError, ValueError) as error:
        raise AdminUnreachableError(
            f"{url} answers, but not as Weir does ({error}) — name Weir's admin address with --admin"
        ) from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        reason, remedy = _unreachable(error)
        raise AdminUnreachableError(f"{url} can't be reached: {reason} — {remedy}") from None


async def _version(session: aiohttp.ClientSession, admin: str) -> str | None:
    """The version of the gateway, None if its metrics do not say it."""
    try:
        async with session.get(f"{admin.rstrip('/')}/metrics") as response:
            found = _BUILD.search(await response.text())
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):  # another server
        return None
    return None if found is None else found[1]


def _unreachable(error: Exception) -> tuple[str, str]:
    """The cause of a failed request, without its address, and the remedy. aiohttp's own text has `ssl:default` in it."""
    if not isinstance(error, aiohttp.ClientConnectorError):
        return str(error) or "no answer in time", _REMEDY
    cause: OSError = error.os_error
    if isinstance(cause, socket.gaierror):
        remedy = "correct the name in --admin, or give the address of the gateway's host"
        if cause.errno in _UNKNOWN:
            return f"the host name {error.host} is unknown", remedy
        return f"the host name {error.host} can't be looked up: {cause.strerror}", remedy
    if isinstance(cause, ssl.SSLError):
        return f"TLS fails: {cause.strerror or cause}", "write http:// in --admin: Weir's own admin port has no TLS"
    if cause.errno is not None and cause.errno > 0:
        return os.strerror(cause.errno), _REMEDY
    return str(error), _REMEDY
