"""Blocking calls that may never return, each in a thread of its own.

The end of the process waits for all threads of `asyncio.to_thread`, and not for these.
"""

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def in_own_thread(call: Callable[[], _Result], name: str) -> _Result:
    """The result of a blocking call. Raises its exception, and OSError if there is no room for the thread `name`."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Result] = loop.create_future()

    def settle(settle_with: Callable[[Any], None], value: object) -> None:
        if not done.done():  # the caller may have been cancelled
            settle_with(value)

    def run() -> None:
        settled: tuple[Callable[[Any], None], object]
        try:
            settled = done.set_result, call()
        except Exception as error:  # such as a UnicodeError: the caller gets it
            settled = done.set_exception, error
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(settle, *settled)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
    return await done
