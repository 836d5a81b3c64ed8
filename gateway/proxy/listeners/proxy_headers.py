"""Reads the PROXY header in front of a connection, byte for byte, so that TLS or the first request follows in the socket."""

import asyncio
import logging
import socket
from contextlib import suppress
from ipaddress import ip_address

from gateway.cluster.brokers import Address
from gateway.config.proxy_protocol import ProxyProtocolConfig
from gateway.observer import Outlet
from gateway.proxy.counters import Counters
from protocol.proxy_header import (
    MAX_HEADER_BYTES,
    InvalidProxyHeader,
    ProxyHeader,
    begins_proxy_header,
    parse_proxy_header,
)

MAX_PENDING = 1_024
"""The limit on connections of a listener without a complete header. One more cuts the oldest: balancers hurry."""

_log = logging.getLogger("weir.cluster")


class ProxyHeaders:
    """Reads and refuses the headers of one listener. `listener` is its name."""

    def __init__(self, listener: str, config: ProxyProtocolConfig, counters: Counters, outlet: Outlet) -> None:
        self._key = f"listeners[{listener}].proxy_protocol"
        self._listener = listener
        self._trusted = config.trusted
        self._required = config.mode == "required"
        self._seconds = config.header_seconds
        self._counters = counters
        self._outlet = outlet
        self._pending: dict[asyncio.Timeout, None] = {}  # the oldest first

    def trusts(self, peer: Address) -> bool:
        """True if the peer is a balancer."""
        address = ip_address(peer[0])
        return any(address in network for network in self._trusted)

    async def read(self, connection: socket.SocketType, balancer: Address) -> tuple[Address, bool]:
        """Take the header off a balancer's connection. Returns the client's address, and True if quotas by address apply.

        They do not apply to the balancer's own connections and to clients without an IP address. Logs and counts a refusal,
        and raises `OSError`.
        """
        self._make_room()
        taken = bytearray()
        limit = asyncio.timeout(self._seconds)
        self._pending[limit] = None
        try:
            async with limit:
                header = await _take_header(connection, taken)
        except InvalidProxyHeader as error:
            raise self._refuse(
                balancer, "invalid", f"its PROXY header {error}: check the balancer's PROXY protocol settings"
            ) from None
        except TimeoutError:
            cut = limit not in self._pending
            if taken or self._required or cut:
                late = (
                    f"before {MAX_PENDING} further connections"
                    if cut
                    else f"within {self._key}.header_seconds, {self._seconds:g} s"
                )
                raise self._refuse(
                    balancer, "timeout", f"no complete PROXY header came {late}: check the balancer's PROXY protocol settings"
                ) from None
            header = None
        finally:
            self._pending.pop(limit, None)
        if header is None:
            if self._required:
                raise self._refuse(
                    balancer,
                    "missing",
                    "it sent no PROXY header: let the balancer send one (HAProxy: send-proxy-v2),"
                    f" or set {self._key}.mode to allowed",
                )
            self._counters.proxy_headers["none"] += 1
            return balancer, True
        self._counters.proxy_headers["local" if header.local else f"v{header.version}"] += 1
        return (balancer, False) if header.source is None else (header.source, True)

    async def refuse_header(self, connection: socket.SocketType, client: Address) -> None:
        """Wait for the first byte of a peer that is no balancer. Logs, counts and raises `OSError` if a header begins."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await _readable(connection)
            if begins_proxy_header(connection.recv(1, socket.MSG_PEEK)):
                raise self._refuse(
                    client,
                    "untrusted",
                    f"it sent a PROXY header, and {self._key}.trusted does not have its address:"
                    " add the address if it is a balancer's",
                )
        self._counters.proxy_headers["none"] += 1

    def refuse_peer(self, client: Address) -> bool:
        """Log and count a refusal, and return True, if each connection must come from a balancer."""
        if self._required:
            self._refuse(
                client,
                "untrusted",
                f"the listener requires a PROXY header, and {self._key}.trusted does not have its address."
                " Add the address if it is a balancer's. A client must connect to the balancer",
            )
        return self._required

    def _make_room(self) -> None:
        if len(self._pending) >= MAX_PENDING:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            if not oldest.expired():
                oldest.reschedule(asyncio.get_running_loop().time())

    def _refuse(self, peer: Address, reason: str, why: str) -> ConnectionAbortedError:
        reason = f"proxy_header_{reason}"
        self._outlet.connection_rejected(reason, peer[0], self._listener)
        _log.warning(
            "listener %s: connection refused: %s",
            self._listener, why, extra={"peer": f"{peer[0]}:{peer[1]}", "reason": reason},
        )  # fmt: skip
        return ConnectionAbortedError(why)


async def _take_header(connection: socket.SocketType, taken: bytearray) -> ProxyHeader | None:
    """Receive the header into `taken`, and no byte behind it. None: no header begins, and all bytes are still in the socket.

    Raises `OSError` or `InvalidProxyHeader`.
    """
    while True:
        await _readable(connection)
        ahead = connection.recv(MAX_HEADER_BYTES - len(taken), socket.MSG_PEEK)
        if not ahead:
            if taken:
                raise InvalidProxyHeader(f"ended after {len(taken)} bytes")
            raise ConnectionResetError("closed before its first byte, as a health check does")
        if not taken and not begins_proxy_header(ahead):
            return None
        header = parse_proxy_header(bytes(taken) + ahead)
        # Bytes of an incomplete header are taken as well: if they stayed, the socket would remain readable.
        taken += connection.recv(len(ahead) if header is None else header.size - len(taken))
        if header is not None:
            return header


async def _readable(connection: socket.SocketType) -> None:
    """Wait until the socket has bytes, or is closed."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection.fileno())
