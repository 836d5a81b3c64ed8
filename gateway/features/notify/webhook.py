"""Sends the notifications of one target: in order, retried with pauses, from a bounded queue."""

import asyncio
import logging
import os
import socket
import ssl
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import aiohttp

from gateway.features.notify.config import NotifyTargetConfig
from gateway.features.notify.name_lookup import resolver
from gateway.files.secret_file import UnusableSecretError

MAX_WAITING: Final = 1_000
"""Notifications of one target. Beyond it, the oldest is dropped."""

ATTEMPTS: Final = 8
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0

_log = logging.getLogger("weir.notify")


class DeliveryError(Exception):
    """An attempt failed. The message does not contain the URL. `retry`: another attempt may succeed; `after`: in seconds."""

    def __init__(self, message: str, *, retry: bool, after: float = 0.0) -> None:
        super().__init__(message)
        self.retry = retry
        self.after = after


class Webhook:
    """One target. `run` sends; `offer` returns at once. `results` counts `sent`, `failed` and `dropped` notifications."""

    def __init__(
        self,
        target: NotifyTargetConfig,
        directory: Path,
        timeout_seconds: float,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        """`directory` is that of the config file, where relative names start."""
        self.target = target
        self.results: Counter[str] = Counter(sent=0, failed=0, dropped=0)
        self._directory = directory
        self.timeout_seconds = timeout_seconds
        self._first_pause = first_pause_seconds
        self._max_waiting = max_waiting
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._delivering = False
        self._offered = asyncio.Event()
        self._finishing = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, body: Mapping[str, Any]) -> None:
        if len(self._waiting) >= self._max_waiting:
            del self._waiting[1 if self._delivering else 0]
            self.results["dropped"] += 1
        self._waiting.append(body)
        self._offered.set()

    def finish(self) -> None:
        """Let `run` try each waiting notification once more, without pauses, and return. An attempt under way goes on."""
        self._finishing.set()
        self._offered.set()

    async def run(self) -> None:
        """Send until `finish`, or until cancelled."""
        # Without cookies and environment proxies: only the configured address gets the request.
        connector = aiohttp.TCPConnector(resolver=resolver())
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
            while True:
                await self._offered.wait()
                while self._waiting:
                    # It stays in the queue meanwhile, so that a restart of this task sends it again.
                    body = self._waiting[0]
                    self._delivering = True
                    try:
                        await self._deliver(session, body)
                    finally:
                        self._delivering = False
                    self._waiting.popleft()
                self._offered.clear()
                if self._finishing.is_set():
                    return

    async def _deliver(self, session: aiohttp.ClientSession, body: Mapping[str, Any]) -> None:
        pause = self._first_pause
        for attempt in range(1, ATTEMPTS + 1):
            last = attempt == ATTEMPTS or self._finishing.is_set()
            try:
                await self._post(session, body)
            except DeliveryError as error:
                last = last or not error.retry
                _log.log(
                    logging.ERROR if last else logging.WARNING,
                    "notify target %s: %s — %s",
                    self.target.name,
                    error,
                    "the notification is lost" if last else f"attempt {attempt} of {ATTEMPTS}",
                    # The log has one line a minute for each reason: that of a retry must not hide a loss.
                    extra={
                        "target": self.target.name,
                        "reason": "notify_lost" if last else "notify",
                        "peer": f"{self.target.name}:0",
                    },
                )
                if last:
                    self.results["failed"] += 1
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._finishing.wait(), min(max(pause, error.after), LONGEST_PAUSE_SECONDS))
                pause = min(pause * 2.0, LONGEST_PAUSE_SECONDS)
            else:
                self.results["sent"] += 1
                return

    async def _post(self, session: aiohttp.ClientSession, body: Mapping[str, Any]) -> None:
        """Raises DeliveryError."""
        try:
            url = await asyncio.to_thread(self.target.address, self._directory)
            timeout = aiohttp.ClientTimeout(total=self.timeout_seconds)
            # A redirect could lead a notification to another host.
            async with session.post(url, json=body, allow_redirects=False, timeout=timeout) as answer:
                status = answer.status
                if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
                    return  # the status decides: the body has no news, and may be endless
                after = answer.headers.get("Retry-After", "")
        except UnusableSecretError as error:
            raise DeliveryError(str(error), retry=True) from None
        except TimeoutError:
            raise DeliveryError("no answer in time", retry=True) from None
        except aiohttp.ClientConnectorError as error:
            raise DeliveryError(f"can't be reached: {_reason(error)}", retry=True) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:  # the texts of these errors may contain the URL
            raise DeliveryError(f"failed: {type(error).__name__}", retry=True) from None
        if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
            raise DeliveryError(f"answers {status}, a redirect: configure the address that it leads to", retry=False)
        retry = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in (
            HTTPStatus.REQUEST_TIMEOUT,
            HTTPStatus.TOO_MANY_REQUESTS,
        )
        seconds = float(after) if after.isascii() and after.isdigit() else 0.0
        raise DeliveryError(f"answers {status}", retry=retry, after=seconds)


def _reason(error: aiohttp.ClientConnectorError) -> str:
    cause: OSError = error.os_error
    if isinstance(cause, ssl.SSLError):  # its number is OpenSSL's
        return f"TLS fails: {cause.strerror or type(cause).__name__}"
    if isinstance(cause, socket.gaierror):
        return f"its host name has no address: {cause.strerror}"
    return os.strerror(cause.errno) if cause.errno is not None and cause.errno > 0 else type(error).__name__
