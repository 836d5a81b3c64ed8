"""Takes new connections from a listening socket, at the pace that the connection quotas allow.

asyncio's own server takes whatever there is and makes a transport for each, and a TLS handshake where there is one, before
anybody is asked. Here a connection costs one `accept` until it is known that it will be served.
"""

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Callable
from math import inf

from gateway.proxy.listeners.admission import Admission, Slot
from gateway.proxy.tls.handshakes import Handshakes

ACCEPTS_PER_WAKE = 32
"""So many are taken before those who are connected already have their turn: about a millisecond's work."""

RETRY_SECONDS = 1.0

_OF_THE_CONNECTION = frozenset({
    errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.ENONET, errno.ENETDOWN,
    errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.ECONNRESET,
})  # fmt: skip
"""Linux reports errors of the new connection as errors of accept (accept(2), "Error handling"); EPERM is a firewall's."""

_log = logging.getLogger("weir.cluster")

Serve = Callable[[Slot], asyncio.Protocol]
"""Makes the protocol of a connection, which releases the slot in its `connection_lost`."""


class Acceptor:
    """Serves one bound and listening socket, which it closes in the end. With `tls`, connections begin with a handshake.

    `listener` is the name of the listener whose limits hold. Whoever may not be taken yet waits in the kernel's queue.
    """

    def __init__(
        self, bound: socket.socket, serve: Serve, admission: Admission, listener: str, *, tls: Handshakes | None = None
    ) -> None:
        self._bound = bound
        self._serve = serve
        self._admission = admission
        self._listener = listener
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accept from now on."""
        if self._bound.fileno() >= 0:
            self._loop.add_reader(self._bound.fileno(), self._accept)

    @property
    def starting(self) -> int:
        """How many connections were accepted and have not begun: those in their TLS handshake."""
        return len(self._starting)

    def finish(self) -> None:
        """Take who waits in the kernel's queue, then nobody any more; open connections and handshakes go on.

        Closing a socket resets the connections in its queue, of which their clients believe that they are served.
        """
        if self._bound.fileno() < 0:
            return
        self._quiet()
        while self._take():
            pass
        self._quiet()
        self._bound.close()

    def close(self) -> None:
        """Accept nobody any more and end handshakes; open connections go on."""
        for task in self._starting:
            task.cancel()
        if self._bound.fileno() >= 0:
            self._quiet()
            self._bound.close()

    def _quiet(self) -> None:
        self._loop.remove_reader(self._bound.fileno())
        if self._pause is not None:
            self._pause.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_WAKE):
            if not self._take():
                return

    def _take(self) -> bool:
        """Take one connection from the queue, if there is one and it may be taken now."""
        wait = self._admission.wait(self._listener, self.start)
        if wait > 0.0:
            self._stop(wait)
            return False
        try:
            connection, address = self._bound.accept()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno in _OF_THE_CONNECTION:  # it was gone again before its turn
                return True
            _log.warning(
                "listener %s: no connection can be accepted for %g s: %s — %s",
                self._listener,
                RETRY_SECONDS,
                error.strerror,
                _remedy(error.errno),
                extra={"reason": f"accept {self._listener}"},
            )
            self._stop(RETRY_SECONDS)
            return False
        connection.setblocking(False)
        slot = self._admission.admit(self._listener, connection, *address[:2])
        if slot is not None:
            task = self._loop.create_task(self._begin(connection, slot))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)
        return True

    def _stop(self, seconds: float) -> None:
        """Take nobody for so long; inf: until `start`."""
        self._loop.remove_reader(self._bound.fileno())
        if seconds < inf:
            self._pause = self._loop.call_later(seconds, self.start)

    async def _begin(self, connection: socket.socket, slot: Slot) -> None:
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(lambda: self._serve(slot), connection)
            else:
                await self._tls.perform(connection, lambda: self._serve(slot))
        except BaseException as error:
            slot.release()
            connection.close()
            if not isinstance(error, OSError):
                raise
            # The client is gone, or its handshake failed.
            _log.debug("a connection ended before it began: %s", error, extra={"peer": slot.ip})


def _remedy(number: int | None) -> str:
    if number == errno.EMFILE:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"a client takes two files and {limit} may be open: raise LimitNOFILE of the service, or ulimit -n of the shell"
    if number == errno.ENFILE:
        return "the machine's limit of open files is reached: raise fs.file-max"
    if number in (errno.ENOBUFS, errno.ENOMEM):
        return "the kernel has no memory for it: give the machine more, or it fewer clients"
    return "the kernel's log may say more; restart Weir if that goes on"
