"""The cause and the remedy if an admin server can't be reached, in words for the operator."""

import os
import socket
import ssl
from typing import Final

import aiohttp

_REMEDY: Final = "start the gateway, or name its admin.host and admin.port with --admin"
_UNKNOWN: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


def unreachable(error: Exception) -> tuple[str, str]:
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
