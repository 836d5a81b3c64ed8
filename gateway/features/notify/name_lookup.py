"""Lookups of the host names of webhooks, each in a thread of its own.

The event loop looks up only two names at a time (libuv), and the brokers' names too. A name server that does not answer
blocks a lookup for 10 s or more. Often only names outside of the cluster have no answer. Two such webhooks would keep new
clients from their brokers.
"""

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

from aiohttp import ThreadedResolver

_Found = TypeVar("_Found")


def resolver() -> ThreadedResolver:
    """A resolver for one target. A connector of aiohttp looks up a name only once at a time, also after a timeout."""
    return ThreadedResolver(cast("asyncio.AbstractEventLoop", _OwnThreads()))


class _OwnThreads:
    """The event loop for a resolver of aiohttp, without the threads that all lookups of an event loop share."""

    async def getaddrinfo(self, host: str, port: int, **options: int) -> list[Any]:
        """As the event loop's. Raises OSError."""
        return await _in_thread(lambda: socket.getaddrinfo(host, port, **options))

    async def getnameinfo(self, address: tuple[Any, ...], flags: int) -> tuple[str, str]:
        """The same."""
        return await _in_thread(lambda: socket.getnameinfo(address, flags))


async def _in_thread(look_up: Callable[[], _Found]) -> _Found:
    """The result of a blocking call. The end of the process waits for no such thread."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Found] = loop.create_future()

    def settle(settle_with: Callable[[Any], None], value: object) -> None:
        if not done.done():  # the attempt may have ended
            settle_with(value)

    def run() -> None:
        settled: tuple[Callable[[Any], None], object]
        try:
            settled = done.set_result, look_up()
        except Exception as error:  # such as a UnicodeError: the attempt gets it
            settled = done.set_exception, error
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(settle, *settled)

    try:
        threading.Thread(target=run, name="look up a webhook's host name", daemon=True).start()
    except RuntimeError:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
    return await done
