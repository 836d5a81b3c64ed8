"""How brokers are connected to: with which TLS, for clients' connections and for Weir's own, and as whom for the latter."""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.cluster.brokers import Address, Brokers
from gateway.cluster.login import Login
from gateway.config import UpstreamConfig
from gateway.tls.causes import cause_of
from gateway.tls.contexts import LiveContext, client_context

_SHUTDOWN_SECONDS = 5.0


class Upstream:
    """The way to the brokers. `live` is its TLS, None for plaintext; `login` is for Weir's own connections."""

    def __init__(self, config: UpstreamConfig, directory: Path, brokers: Brokers, reloads: "Counter[str]") -> None:
        """`directory` is the config file's. Raises OSError where the certificates can't be used."""
        self.brokers = brokers
        self.login = Login(config.sasl, directory)
        self.live: LiveContext[ssl.SSLContext] | None = None
        if config.tls is not None:
            tls = config.tls.resolved(directory)
            self.live = LiveContext("upstream.tls", tls.files, lambda: client_context(tls), reloads)

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS of new connections, None for plaintext."""
        return None if self.live is None else self.live.context

    def client_options(self) -> dict[str, Any]:
        """What a Kafka client of Weir's own needs to be let in, as aiokafka's clients take it. Raises CredentialsError."""
        context, options = self.context, self.login.options()
        protocol = ("SASL_" if options else "") + ("PLAINTEXT" if context is None else "SSL")
        return options | {"security_protocol": protocol} | ({} if context is None else {"ssl_context": context})

    async def dial_broker(self, node_id: int, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Connect a protocol to a broker that is known. Raises OSError, which names the cause."""
        return await self._connect(self.brokers.address(node_id), protocol)

    async def dial_anyone(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Connect a protocol to the first broker that can be reached. Raises OSError, which names each one's cause."""
        failures: list[str] = []
        for address in self.brokers.anyone():
            try:
                return await self._connect(address, protocol)
            except OSError as error:
                failures.append(f"{address[0]}:{address[1]}: {error.strerror or error}")
        raise OSError("; ".join(failures))

    async def _connect(self, address: Address, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        context = self.context
        shutdown = None if context is None else _SHUTDOWN_SECONDS
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(
                protocol, *address, ssl=context, ssl_shutdown_timeout=shutdown
            )
        except (ssl.SSLError, ssl.CertificateError) as error:
            words = cause_of(error, "the broker's").words
            raise OSError(f"TLS handshake failed: {words}") from error
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return transport
