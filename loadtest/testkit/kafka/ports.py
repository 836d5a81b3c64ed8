"""Free TCP ports on the loopback interface.

They are taken from below the range that the kernel uses for outgoing connections. A node that is down for a moment
would otherwise find its port taken by somebody's outgoing connection, or a client that reconnects to it end up
connected to itself. Test runs and load scenarios that go on side by side keep out of each other's way by a lock on each port
that they hand out, which ends with their process.
"""

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

_LOWEST = 22_000
"""Below it are the addresses that unit tests name outright."""

_LEAST_CHOICE = 1_000
"""So many ports there are to choose from, wherever the kernel's range begins."""

_given: set[int] = set()


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@cache
def _locks() -> int:
    """A file of which each byte that is locked is a port that is taken."""
    path = Path(tempfile.gettempdir()) / f"weir-ports-{os.getuid()}.lock"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _reserve(first: int, count: int) -> bool:
    try:
        fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, count, first)
    except OSError:
        return False
    return True


def free_port_range(count: int) -> int:
    """Return the first of `count` consecutive free ports. None of them is handed out twice as long as this process lives.

    Raises OSError where no such range is found.
    """
    highest = max(_ephemeral_start(), _LOWEST + _LEAST_CHOICE) - count
    for _ in range(1_000):
        first = random.randrange(_LOWEST, highest)
        ports = range(first, first + count)
        if _given.isdisjoint(ports) and _reserve(first, count) and all(_is_free(port) for port in ports):
            _given.update(ports)
            return first
    raise OSError(f"no {count} consecutive free ports between {_LOWEST} and {highest}: stop what listens there")


def free_port() -> int:
    """Return a free port; never the same one twice. Raises OSError where there is none."""
    return free_port_range(1)
