"""Which broker a port is for, where several processes listen on the same ones."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EADDRINUSE
from pathlib import Path

_OTHERS = "others"
"""Instead of a broker: somebody else has the port."""


class PortClaims:
    """The agreement of processes with one `directory` in common, as a symbolic link for each address: its target is the broker.

    A client that one process has told of a port may be served by any of them, so a port has to mean the same broker to all.
    Links are made by one process at a time, and whoever comes second can read what the first has decided.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def claim(self, host: str, port: int, node_id: int, try_alone: Callable[[], None]) -> bool:
        """Whether the port is this broker's, by now or already. Raises OSError where the directory can't be written.

        The first who asks finds out, with `try_alone`, whether anybody else listens there: it binds the port without
        SO_REUSEPORT, while nobody here does. Its OSError is raised; a port in use is no broker's from then on.
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
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # for as long as it takes to bind a port
            yield
        finally:
            os.close(descriptor)
