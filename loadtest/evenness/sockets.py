"""The instrument: the bytes that the kernel has moved over a process's connections, as TCP_INFO counts them.

It looks at clients from outside, and is the same for producers and consumers, with a gateway between or without. Of a
producer it counts what the other end's kernel has acknowledged; it runs ahead of what the broker has by the requests in
flight, which with a full pipeline is always the same amount.
"""

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

INTERVAL_SECONDS = 0.25

_ACKED = re.compile(r"\bbytes_acked:(\d+)")
_RECEIVED = re.compile(r"\bbytes_received:(\d+)")
_PID = re.compile(r"\bpid=(\d+)")
_LOCAL = re.compile(r"^\s*\d+\s+\d+\s+\S+:(\d+)\s+\S+:\d+")


class InstrumentMissingError(RuntimeError):
    """`ss` is not there."""


@dataclass(frozen=True)
class Counted:
    """One connection: its local port, its bytes so far, and whose it is (0: `ss` was not asked, or can't tell)."""

    port: int
    acked: int
    received: int
    pid: int


def parse(output: str) -> list[Counted]:
    """Return the connections in the output of `ss -tinHO` (with -p: and whose they are)."""
    found = []
    for line in output.splitlines():
        local, pid = _LOCAL.match(line), _PID.search(line)
        if local is None:
            continue
        acked, received = _ACKED.search(line), _RECEIVED.search(line)
        found.append(
            Counted(
                int(local[1]),
                # The first byte that is acknowledged is the SYN's; a counter that is 0 is left out.
                int(acked[1]) if acked else 0,
                int(received[1]) if received else 0,
                int(pid[1]) if pid else 0,
            )
        )
    return found


class ByteCounter:
    """Samples all connections to `ports` until it is closed; `series` holds what processes have moved."""

    def __init__(self, ports: Iterable[int]) -> None:
        """Raises InstrumentMissingError where there is no `ss`."""
        binary = shutil.which("ss")
        if binary is None:
            raise InstrumentMissingError("there is no ss, which counts the clients' bytes: install Debian's iproute2")
        self._command = [binary, "-tinHO", "state", "established", " or ".join(f"dport = :{port}" for port in ports)]
        self._owners: dict[int, int] = {}
        self._bytes: dict[int, Counted] = {}
        self._totals: dict[int, tuple[int, int]] = {}
        self._connections: dict[int, int] = {}
        self._series: dict[int, list[tuple[float, int, int]]] = {}
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """Sample no more."""
        self._end.set()
        self._thread.join()

    def series(self, pids: Iterable[int]) -> list[tuple[float, int, int]]:
        """Return (monotonic seconds, bytes sent, bytes received) of these processes together, one for each sample."""
        together: dict[float, tuple[int, int]] = {}
        with self._lock:
            for pid in pids:
                for when, sent, received in self._series.get(pid, []):
                    so_far = together.get(when, (0, 0))
                    together[when] = (so_far[0] + sent, so_far[1] + received)
        return [(when, *counts) for when, counts in sorted(together.items())]

    def connections(self, pids: Iterable[int]) -> int:
        """Return how many connections these processes have opened so far."""
        with self._lock:
            return sum(self._connections.get(pid, 0) for pid in pids)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._end.wait(max(0.0, due - time.monotonic())):
            self._sample()
            due += INTERVAL_SECONDS

    def _sample(self) -> None:
        now = time.monotonic()
        seen = self._ask()
        if any(connection.port not in self._owners for connection in seen):
            # Whose a connection is takes `ss` a look at every process, so it is asked only about new ones.
            self._owners.update({connection.port: connection.pid for connection in self._ask("-p") if connection.pid})
        with self._lock:
            for connection in seen:
                pid = self._owners.get(connection.port)
                if pid is not None:
                    self._add(pid, connection)
            for port in self._bytes.keys() - {connection.port for connection in seen}:
                del self._bytes[port], self._owners[port]
            for pid, (sent, received) in self._totals.items():
                self._series.setdefault(pid, []).append((now, sent, received))

    def _add(self, pid: int, connection: Counted) -> None:
        before = self._bytes.get(connection.port)
        if before is None:
            self._connections[pid] = self._connections.get(pid, 0) + 1
        had = (before.acked, before.received) if before else (0, 0)
        sent, received = self._totals.get(pid, (0, 0))
        self._totals[pid] = (sent + connection.acked - had[0], received + connection.received - had[1])
        self._bytes[connection.port] = connection

    def _ask(self, *options: str) -> list[Counted]:
        command = [self._command[0], *options, *self._command[1:]]
        return parse(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
