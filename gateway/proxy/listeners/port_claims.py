"""Coordinates worker processes: the cluster that they serve, and the broker ports on which they all listen."""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EADDRINUSE, ENOSPC
from typing import Protocol, TypeVar

_OTHERS = "others"
"""Stands for a broker if another program has the port."""

_CLUSTER = "cluster"
"""Stands for an address in the line of the cluster's id."""


def _owner(claims: str, address: str) -> str:
    """The broker's id in the last claim of an address, or `_OTHERS`, or nothing."""
    _, claimed, rest = claims.rpartition(f"\n{address} ")
    return rest.partition("\n")[0] if claimed else ""


class BoundPort(Protocol):
    """A listening socket."""

    def close(self) -> None: ...


Bound = TypeVar("Bound", bound=BoundPort)


class PortClaims:
    """Agrees on the cluster and on one broker for each port, among the processes that share a file.

    A client may connect to any of the processes, so a port must mean the same broker in all of them. Each claim is a line
    with the address and the broker's id, and the last one of an address counts. A lock on the file serializes the claims.
    """

    def __init__(self, file: int) -> None:
        """`file` is the descriptor of a file without a name, so that no cleaner of temporary folders can delete claims."""
        self._file = file

    def claim(
        self,
        host: str,
        port: int,
        node_id: int,
        bind: Callable[[bool], Bound],
        is_known: Callable[[int], bool],
        broker_ports: Sequence[int] = (),
    ) -> Bound | None:
        """Bind the port if it belongs to this broker, from now on or already. Raises `OSError`, also if the disk is full.

        `bind` gets True for SO_REUSEPORT. The first process to claim a port binds it alone before, and so detects another
        program. After EADDRINUSE, a process can claim the port with `broker_ports` only. A port is free again if its broker is
        not known any more and no process listens there. The lock is held meanwhile, so that no process finds a port free that
        another one binds.

        `broker_ports` are all that the broker may have. If it owns none, a port that another program had is tried too.
        Processes that find the port free at different times would otherwise have different ports for a broker.
        """
        address = f"{host}:{port}"
        with self._one_at_a_time():
            claims = self._claims()
            owner = _owner(claims, address)
            if owner == str(node_id):
                return self._bind(address, bind)
            if owner == _OTHERS:
                if not broker_ports or any(_owner(claims, f"{host}:{each}") == str(node_id) for each in broker_ports):
                    return None
            elif owner and is_known(int(owner)):
                return None
            try:
                bind(False).close()
            except OSError as error:
                if error.errno == EADDRINUSE:
                    if owner and owner != _OTHERS:
                        return None  # another process still serves it
                    if not owner:
                        self._add(address, _OTHERS)
                raise
            self._add(address, str(node_id))
            return self._bind(address, bind)

    def _bind(self, address: str, bind: Callable[[bool], Bound]) -> Bound:
        """Bind a port that is claimed. After EADDRINUSE, another program has it, and no process serves its broker there."""
        try:
            return bind(True)
        except OSError as error:
            if error.errno == EADDRINUSE:
                self._add(address, _OTHERS)
            raise

    def agree_on_cluster(self, cluster_id: str) -> str:
        """The first id that any process has passed. A worker that is replaced may find another cluster's broker first."""
        with self._one_at_a_time():
            _, agreed, rest = self._claims().partition(f"\n{_CLUSTER} ")
            if agreed:
                return bytes.fromhex(rest.partition("\n")[0]).decode()
            with suppress(OSError):  # the disk is full
                self._add(_CLUSTER, cluster_id.encode().hex())
        return cluster_id

    def _claims(self) -> str:
        return os.pread(self._file, os.fstat(self._file).st_size, 0).decode()

    def _add(self, address: str, owner: str) -> None:
        line, end = f"\n{address} {owner}\n".encode(), os.fstat(self._file).st_size
        if os.pwrite(self._file, line, end) < len(line):
            os.ftruncate(self._file, end)  # the beginning of a line could name another broker
            raise OSError(ENOSPC, os.strerror(ENOSPC))

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        # flock would not keep the processes apart, because they have inherited one open file. This lock belongs to a process.
        fcntl.lockf(self._file, fcntl.LOCK_EX)  # held only while a process binds a port
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
