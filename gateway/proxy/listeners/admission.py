"""The interface of the check on new connections. `features.connection_quotas` implements it."""

import socket
from collections.abc import Callable
from typing import Protocol


class Slot(Protocol):
    """The place of one admitted connection among those that the limits count."""

    @property
    def ip(self) -> str:
        """The client's address."""
        ...

    def release(self) -> None:
        """Give the place back. A second call does nothing."""
        ...


class Admission(Protocol):
    """The check on new connections, shared by all acceptors of a gateway."""

    def wait(self, listener: str, resume: Callable[[], None]) -> float:
        """Return the seconds until the listener may accept a connection. After `inf`, it calls `resume` when that changes."""
        ...

    def admit(self, listener: str, connection: socket.socket, ip: str, port: int) -> Slot | None:
        """Count a new connection. None: it was refused, and this object closes its socket."""
        ...
