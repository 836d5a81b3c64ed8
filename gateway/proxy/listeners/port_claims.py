"""Coordinates the broker ports of worker processes that listen on the same ports."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EADDRINUSE
from pathlib import Path

_OTHERS = "others"
"""Stands for a broker if another program has the port."""


class PortClaims:
    """Agrees on one broker for each port, among the processes that share `directory`.

    A client may connect to any of the processes, so a port must mean the same broker in all of them. Each claim is a
    symbolic link named after the address, with the broker's id as its target. A lock on the directory serializes the claims.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def claim(self, host: str, port: int, node_id: int, try_alone: Callable[[], None]) -> bool:
        """True if the port belongs to this broker, from now on or already. Raises `OSError` if the directory is not
        writable.

        The first process to claim a port calls `try_alone`, which binds the port without SO_REUSEPORT and so detects another
        program. Its `OSError` is raised; after EADDRINUSE, no process can claim the port.
        """
        link = self._directory / f"{host}:{port}"
        with self._one_at_a_time():
            try:
                return str(link.readlink()) == str(node_id)
            except FileNotFoundError:
                pass
            try:
                try_alone()
            except OSError as error:
                if error.errno == EADDRINUSE:
                    link.symlink_to(_OTHERS)
                raise
            link.symlink_to(str(node_id))
        return True

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # held only while a process binds a port
            yield
        finally:
            os.close(descriptor)
