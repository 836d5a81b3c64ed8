"""Measures consumers: the bytes that the kernel has received on a process's connections (TCP_INFO).

It observes the clients from outside, in the same way with and without a gateway.
"""

import re
import shutil
import subprocess
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from loadtest.scenarios.evenness.logs import Sampler, Series

_RECEIVED = re.compile(r"\bbytes_received:(\d+)")
_PID = re.compile(r"\bpid=(\d+)")
_LOCAL = re.compile(r"^\s*\d+\s+\d+\s+\S+:(\d+)\s+\S+:\d+")


class InstrumentMissingError(RuntimeError):
    """The program `ss` is missing."""


@dataclass(frozen=True)
class Counted:
    """A connection: its local port, the bytes received, and its process (0 if unknown)."""

    port: int
    received: int
    pid: int


def parse(output: str) -> list[Counted]:
    """The connections in the output of `ss -tinHO`; with -p, including their processes."""
    found = []
    for line in output.splitlines():
        local, pid = _LOCAL.match(line), _PID.search(line)
        if local is None:
            continue
        received = _RECEIVED.search(line)  # `ss` omits the count while it is 0
        found.append(Counted(int(local[1]), int(received[1]) if received else 0, int(pid[1]) if pid else 0))
    return found


class ReceivedCounter(Sampler):
    """Samples all connections to `ports`."""

    def __init__(self, ports: Iterable[int]) -> None:
        """Raises `InstrumentMissingError` if `ss` is missing."""
        super().__init__()
        binary = shutil.which("ss")
        if binary is None:
            raise InstrumentMissingError(
                "the program ss is missing, which counts the clients' bytes: install Debian's iproute2"
            )
        self._command = [binary, "-tinHO", "state", "established", " or ".join(f"dport = :{port}" for port in ports)]
        self._owners: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._totals: dict[int, int] = {}
        self._connections: dict[int, int] = {}
        self._series: dict[int, Series] = {}
        self._lock = threading.Lock()

    def series(self, pids: Iterable[int]) -> Series:
        """The bytes that these processes had received at each sample, in total."""
        together: dict[float, int] = {}
        with self._lock:
            for pid in pids:
                for when, received in self._series.get(pid, []):
                    together[when] = together.get(when, 0) + received
        return sorted(together.items())

    def connections(self, pids: Iterable[int]) -> int:
        """The number of connections that these processes have opened so far."""
        with self._lock:
            return sum(self._connections.get(pid, 0) for pid in pids)

    def sample(self, now: float) -> None:
        seen = self._ask()
        if any(connection.port not in self._owners for connection in seen):
            # To find a connection's process, `ss` must search all processes. So this happens only for new connections.
            self._owners.update({connection.port: connection.pid for connection in self._ask("-p") if connection.pid})
        with self._lock:
            for connection in seen:
                pid = self._owners.get(connection.port)
                if pid is not None:
                    self._add(pid, connection)
            for port in self._last.keys() - {connection.port for connection in seen}:
                del self._last[port], self._owners[port]
            for pid, received in self._totals.items():
                self._series.setdefault(pid, []).append((now, received))

    def _add(self, pid: int, connection: Counted) -> None:
        if connection.port not in self._last:
            self._connections[pid] = self._connections.get(pid, 0) + 1
        had = self._last.get(connection.port, 0)
        self._totals[pid] = self._totals.get(pid, 0) + connection.received - had
        self._last[connection.port] = connection.received

    def _ask(self, *options: str) -> list[Counted]:
        command = [self._command[0], *options, *self._command[1:]]
        return parse(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
