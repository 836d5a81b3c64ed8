"""Lookups of the host names of webhooks, each in a thread of its own.

The event loop looks up only two names at a time (libuv), and the brokers' names too. A name server that does not answer
blocks a lookup for 10 s or more. Often only names outside of the cluster have no answer. Two such webhooks would keep new
clients from their brokers.
"""

import asyncio
import socket
from typing import Any, Final, cast

from aiohttp import ThreadedResolver

from gateway.own_thread import in_own_thread

_NAME: Final = "look up a webhook's host name"


def resolver() -> ThreadedResolver:
    """A resolver for one target. A connector of aiohttp looks up a name only once at a time, also after a timeout."""
    return ThreadedResolver(cast("asyncio.AbstractEventLoop", _OwnThreads()))


class _OwnThreads:
    """The event loop for a resolver of aiohttp, without the threads that all lookups of an event loop share."""

    async def getaddrinfo(self, host: str, port: int, **options: int) -> list[Any]:
        """As the event loop's. Raises OSError."""
        return await in_own_thread(lambda: socket.getaddrinfo(host, port, **options), _NAME)

    async def getnameinfo(self, address: tuple[Any, ...], flags: int) -> tuple[str, str]:
        """As the event loop's. Raises OSError."""
        return await in_own_thread(lambda: socket.getnameinfo(address, flags), _NAME)
