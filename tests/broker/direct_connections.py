"""Finds processes that connect to a broker's own address, by the kernel's socket tables."""

import gc
import threading
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

_INTERVAL_SECONDS = 0.02


class DirectConnections:
    """Within its `with` block, collects in `found` every process outside `allowed` that connects to `ports`.

    Connections from before the block do not count. A client of an earlier test may still be connected directly, because the
    traceback of a retried test keeps it alive.

    The check samples every 20 ms, so it may miss shorter connections. Kafka's clients keep connections until they close, so a
    connection to a leaked address lasts as long as its client.
    """

    def __init__(self, ports: Collection[int], allowed: Collection[int]) -> None:
        self.found: set[str] = set()
        self._ports = {f"{port:04X}" for port in ports}
        self._allowed = [str(pid) for pid in allowed]
        self._innocent: set[str] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._end.wait(_INTERVAL_SECONDS):
            self._sample()

    def _sample(self) -> None:
        unknown = self._connected() - self._innocent
        if unknown:
            self._innocent |= {inode for pid in self._allowed for inode in _sockets(pid)}
        for inode in unknown - self._innocent:
            owner = _owner(inode)
            # No owner: the socket was closed meanwhile, or an allowed process opened it after its sockets were listed.
            if owner is not None and owner not in self._allowed:
                self.found.add(f"process {owner}: {_command(owner)[:200]}")

    def _connected(self) -> set[str]:
        inodes = set()
        for table in Path("/proc/net").glob("tcp*"):
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[2].rpartition(":")[2] in self._ports and fields[9] != "0":
                    inodes.add(fields[9])
        return inodes

    def __enter__(self) -> Self:
        gc.collect()  # closes clients that earlier tests left in reference cycles, before they connect again
        self._innocent = self._connected()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()
        self._sample()


def _sockets(pid: str) -> set[str]:
    inodes = set()
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    except OSError:
        pass  # the process or the descriptor has gone meanwhile
    return inodes


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "which has gone meanwhile"


def _owner(inode: str) -> str | None:
    processes = (folder.name for folder in Path("/proc").iterdir() if folder.name.isdigit())
    return next((pid for pid in processes if inode in _sockets(pid)), None)
