"""Listening sockets, the cause and the remedy without one, and warnings of ports that another program may have first."""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.config.model import ListenerConfig, WeirConfig

_SYSCTLS: Final = Path("/proc/sys/net/ipv4")


BACKLOG: Final = 1_024
"""The most connections in the kernel's queue of a listening socket. Linux keeps one more."""


class BindError(Exception):
    """An address can't be bound. The message has the key, the reason and the remedy."""


def bind_bootstrap_port(config: "ListenerConfig", *, reuse_port: bool) -> socket.socket:
    """A listening socket. With `reuse_port`, other processes may listen on the same port. Raises `BindError`."""
    host, port = config.host, config.bootstrap_port
    try:
        return listening_socket(host, port, reuse_port=reuse_port)
    except OSError as error:
        raise BindError(
            f"listeners[{config.name}].bootstrap_port: {host}:{port} can't be bound: "
            f"{why_not(error, f'listeners[{config.name}].host')}"
        ) from error


def listening_socket(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    """A socket that does not block, for clients. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=reuse_port)
    bound.setblocking(False)
    for level, option in ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_NODELAY)):
        bound.setsockopt(level, option, 1)  # accepted sockets inherit both
    return bound


def why_not(error: OSError, host_key: str) -> str:
    """The system's error text and the remedy. `host_key` is the config key of the host.

    asyncio's own text would repeat the address, which the message has already.
    """
    if error.errno is None or error.errno < 0:  # a name that can't be resolved
        return f"{error.strerror or error} — set {host_key} to an address of this machine"
    match error.errno:
        case errno.EADDRNOTAVAIL:
            remedy = f"set {host_key} to an address of this machine, or to 0.0.0.0 for all of them"
        case errno.EACCES | errno.EPERM:
            remedy = "choose a port above 1023, or give Weir the right to this port (CAP_NET_BIND_SERVICE)"
        case _:
            remedy = "stop the other process on this port, or choose another port"
    return f"{os.strerror(error.errno)} — {remedy}"


def outgoing_port_warnings(config: "WeirConfig", sysctls: Path = _SYSCTLS) -> Iterator[str]:
    """One line for each key of a listener with ports that the kernel gives to outgoing connections.

    A connection of any program may have such a port when Weir binds it. `sysctls` is the kernel's folder. Without it, there are
    no warnings.
    """
    try:
        first, last = map(int, (sysctls / "ip_local_port_range").read_text().split())
        reserved = _ports((sysctls / "ip_local_reserved_ports").read_text())
    except (OSError, ValueError):
        return
    for index, listener in enumerate(config.listeners):
        of_brokers = listener.broker_ports
        for key, shown, ports in (
            ("bootstrap_port", str(listener.bootstrap_port), [listener.bootstrap_port]),
            ("broker_ports", str(of_brokers), of_brokers.ports if of_brokers is not None else []),
        ):
            if any(first <= port <= last and port not in reserved for port in ports):
                yield (
                    f"listeners[{index}].{key}: {shown} is in the range of outgoing connections ({first}-{last}), so another"
                    f" program may have a port — choose ports below {first}, or set net.ipv4.ip_local_reserved_ports"
                )


def _ports(text: str) -> frozenset[int]:
    """The ports of a list such as `8080,9100-9110`. Raises ValueError."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    return frozenset(port for first, _, last in ranges for port in range(int(first), int(last or first) + 1))
