"""The kernel's queue of a listening socket: connections whose handshake is done, and that nobody has accepted."""

import socket
import sys
from typing import Any, cast

from gateway.proxy.tcp_info import queued_connections


class AcceptQueue:
    """Accepts connections. With `bare`, their sockets are of `socket.SocketType`, the C base class of `socket.socket`.

    Sessions need no more. The Python class takes 7 us for each connection, of 170 in all.
    """

    __slots__ = ("_accept", "_bare", "_bound", "_family", "_kind", "_protocol")

    def __init__(self, bound: socket.socket, *, bare: bool) -> None:
        self._bound = bound
        self._bare = bare
        self._accept: Any = bound.accept
        if bare:
            self._accept = cast("Any", bound)._accept
            # Each read of these attributes makes an enumeration's member.
            self._family, self._kind, self._protocol = int(bound.family), int(bound.type), bound.proto

    def waiting(self) -> int:
        """The number of connections that may be accepted now: 1 even if the queue is empty, 0 if the socket is closed.

        Returns `sys.maxsize` on systems that hide the length. An `accept` in vain takes 6 us for its exception.
        """
        if self._bound.fileno() < 0:
            return 0
        queued = queued_connections(self._bound)
        return sys.maxsize if queued is None else max(1, queued)

    def take(self) -> tuple[socket.SocketType, Any]:
        """Accept a connection, and return its socket and its address. Raises OSError; BlockingIOError without a connection."""
        if not self._bare:
            taken: tuple[socket.SocketType, Any] = self._accept()
            return taken
        fd, address = self._accept()
        return socket.SocketType(self._family, self._kind, self._protocol, fd), address
