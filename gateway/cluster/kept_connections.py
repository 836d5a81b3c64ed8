"""Connections to brokers whose clients have gone. In a storm of short connections, the next clients get them.

At any time, each of them has one client at most (docs/decisions/039-kept-connections.md).
"""

import asyncio
import ssl
from collections import Counter
from typing import Final, cast

from gateway.proxy.counters import Counters
from gateway.proxy.sessions import Attempt
from gateway.proxy.socket_transport import is_own
from gateway.proxy.tcp_info import has_left, peer_address
from gateway.proxy.tls.tls_transport import is_tls

STORM: Final = 20
"""New connections to one address within a second. Below, a connection to the broker ends with its client's."""

KEPT_SECONDS: Final = 1.0
"""The time for which a connection waits for another client, up to the next `tick`."""

MAX_KEPT: Final = 64
"""The connections that wait for each address. In a storm, few wait at a time."""

CheckedAddress = tuple[str, int, str]
"""An IP address with its port, and the name that the peer's certificate was checked for, "" without TLS."""


class _Kept:
    """The asyncio protocol of a connection without a client."""

    def __init__(self, transport: asyncio.Transport, since: float) -> None:
        self.transport = transport
        self.since = since

    def data_received(self, data: bytes) -> None:  # noqa: ARG002 -- nobody has asked for it
        self.transport.abort()

    def pause_writing(self) -> None:
        """It writes nothing."""

    def resume_writing(self) -> None:
        """It writes nothing."""

    def eof_received(self) -> None:
        """The broker has closed its side: the transport closes ours."""

    def connection_lost(self, exc: Exception | None) -> None:
        """`KeptConnections.take` leaves out a connection that is closing."""


class KeptConnections:
    """The kept connections of a process. Times are monotonic seconds."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._kept: dict[CheckedAddress, list[_Kept]] = {}
        self._dialed: Counter[CheckedAddress] = Counter()  # since the last `tick`
        self._storms: set[CheckedAddress] = set()

    def take(self, peer: CheckedAddress, protocol: asyncio.Protocol) -> Attempt | None:
        """Give a kept connection to a client's session. None if there is none: then the caller makes a new one."""
        self._dialed[peer] = dialed = self._dialed[peer] + 1
        if dialed == STORM:
            self._storms.add(peer)
        kept = self._kept.get(peer)
        while kept:
            transport = kept.pop().transport  # the youngest one: the others may end unused
            if transport.is_closing():
                continue
            if has_left(transport.get_extra_info("socket")):
                transport.abort()
                continue
            self._counters.connections_reused += 1
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            return cast("Attempt", transport)
        return None

    def keep(self, transport: asyncio.Transport, now: float) -> bool:
        """Keep the connection of a client that has left nothing behind. False: the caller has to close it."""
        if not self._storms or transport.is_closing() or not (is_own(transport) or is_tls(transport)):
            return False
        address = peer_address(transport.get_extra_info("socket"))
        if address is None:
            return False
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        peer = (*address, "" if tls is None else tls.server_hostname or "")
        if peer not in self._storms:
            return False
        kept = self._kept.setdefault(peer, [])
        if len(kept) >= MAX_KEPT:
            return False
        waiting = _Kept(transport, now)
        kept.append(waiting)
        transport.set_protocol(cast("asyncio.Protocol", waiting))
        transport.resume_reading()
        return True

    def tick(self, now: float) -> None:
        """Close those that no client needed, and see which storms are over. Called once a second."""
        self._storms = {peer for peer, count in self._dialed.items() if count >= STORM}
        self._dialed.clear()
        for peer, kept in list(self._kept.items()):
            for each in kept:
                if now - each.since >= KEPT_SECONDS:
                    each.transport.close()
            kept[:] = [each for each in kept if not each.transport.is_closing()]
            if not kept:
                del self._kept[peer]

    def close(self) -> None:
        """Close all."""
        for kept in self._kept.values():
            for each in kept:
                each.transport.close()
        self._kept.clear()
        self._storms.clear()
