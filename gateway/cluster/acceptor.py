"""Takes new connections from a listening socket, at the pace that is set here.

asyncio's own server takes whatever there is and makes a transport for each, and a TLS handshake where there is one, before
anybody is asked. Here a connection costs one `accept` until it is known that it will be served.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

ACCEPTS_PER_WAKE = 32
"""So many are taken before those who are connected already have their turn: about a millisecond's work."""

RETRY_SECONDS = 1.0

_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger("weir.cluster")


class Acceptor:
    """Serves one bound and listening socket, which it closes in the end. With `tls`, connections begin with a handshake."""

    def __init__(
        self, bound: socket.socket, protocol: Callable[[], asyncio.Protocol], *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._bound = bound
        self._protocol = protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accept from now on."""
        self._loop.add_reader(self._bound.fileno(), self._accept)

    def close(self) -> None:
        """Accept nobody any more; open connections go on."""
        if self._bound.fileno() < 0:
            return
        self._loop.remove_reader(self._bound.fileno())
        if self._retry is not None:
            self._retry.cancel()
        for task in self._starting:
            task.cancel()
        self._bound.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_WAKE):
            try:
                connection, _ = self._bound.accept()
            except ConnectionAbortedError:  # it was gone again before its turn
                continue
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                _log.error("no connection can be accepted for %g s: %s", RETRY_SECONDS, error.strerror)
                self._loop.remove_reader(self._bound.fileno())
                self._retry = self._loop.call_later(RETRY_SECONDS, self.start)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._serve(connection))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection, ssl=self._tls)
        except OSError as error:  # the client is gone, or its handshake failed
            connection.close()
            _log.debug("a connection ended before it began: %s", error)
