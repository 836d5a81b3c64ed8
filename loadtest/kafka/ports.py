"""Free TCP ports on the loopback interface.

They are taken from below the range that the kernel uses for outgoing connections. A node that is down for a moment
would otherwise find its port taken by somebody's outgoing connection, or a client that reconnects to it end up
connected to itself.
"""

import random
import socket
from pathlib import Path

_LOWEST = 15_000
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


def free_port_range(count: int) -> int:
    """Return the first of `count` consecutive free ports. None of them is handed out twice in one process.

    Raises OSError where no such range is found.
    """
    highest = max(_ephemeral_start(), _LOWEST + 1_000) - count
    for _ in range(1_000):
        first = random.randrange(_LOWEST, highest)
        ports = range(first, first + count)
        if _given.isdisjoint(ports) and all(_is_free(port) for port in ports):
            _given.update(ports)
            return first
    raise OSError(f"no {count} consecutive free ports between {_LOWEST} and {highest}: stop what listens there")


def free_port() -> int:
    """Return a free port; never the same one twice in one process. Raises OSError where there is none."""
    return free_port_range(1)
