"""Reserves free TCP ports on the loopback interface.

The ports are below the kernel's range for outgoing connections. Otherwise, an outgoing connection could take the port of a
node that is down for a moment. A client that reconnects could even connect to itself.

Test runs and load scenarios may run side by side: each process locks the ports that it reserves, until it ends.
"""

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

_LOWEST = 22_000
"""Unit tests use fixed ports below this one."""

_LEAST_CHOICE = 1_000
"""The least number of ports to choose from, even if the kernel's range starts lower."""

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
    """A file with one lockable byte for each port."""
    path = Path(tempfile.gettempdir()) / f"weir-ports-{os.getuid()}.lock"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _reserve(first: int, count: int) -> bool:
    try:
        fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, count, first)
    except OSError:
        return False
    return True


def free_port_range(count: int) -> int:
    """The first of `count` consecutive free ports. Never returns a port twice in one process. Raises `OSError`."""
    highest = max(_ephemeral_start(), _LOWEST + _LEAST_CHOICE) - count
    for _ in range(1_000):
        first = random.randrange(_LOWEST, highest)
        ports = range(first, first + count)
        if _given.isdisjoint(ports) and _reserve(first, count) and all(_is_free(port) for port in ports):
            _given.update(ports)
            return first
    raise OSError(f"no {count} consecutive free ports between {_LOWEST} and {highest}: stop programs that listen there")


def free_port() -> int:
    """A free port. Never returns a port twice in one process. Raises `OSError`."""
    return free_port_range(1)
