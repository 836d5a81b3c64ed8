"""Starts the session of a TLS client after its handshake: finds its user and its broker."""

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from gateway import clock
from gateway.cluster.brokers import Address
from gateway.proxy.connection import Session
from gateway.proxy.sessions import SessionHost
from gateway.proxy.tls.causes import Cause
from gateway.proxy.tls.handshakes import server_name
from gateway.proxy.tls.principal import PrincipalMapping
from gateway.proxy.tls.subject import expiry, subject
from gateway.proxy.wire import Slot
from gateway.quotas.entity import ANONYMOUS

_log = logging.getLogger("weir.cluster")


@dataclass(frozen=True, slots=True)
class TlsAcceptor:
    """The settings of one port. `host_of` maps a server name (SNI) to a session host; `failures` counts by reason."""

    listener: str
    host_of: Callable[[str | None], SessionHost]
    mapping: PrincipalMapping
    failures: "Counter[str]"


class AcceptedTlsClient:
    """The first asyncio protocol of a TLS connection, after its handshake. Its session takes over at once.

    A client without a certificate is ANONYMOUS. As in Kafka, the gateway refuses a client if no rule matches its
    certificate's subject. OpenSSL does not look at the certificate of a resumed session, so its expiry is checked here.
    """

    def __init__(self, acceptor: TlsAcceptor, slot: Slot, address: Address) -> None:
        self._acceptor = acceptor
        self._slot = slot
        self._address = address

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        client = cast("asyncio.Transport", transport)
        connection = cast("ssl.SSLObject", client.get_extra_info("ssl_object"))
        acceptor = self._acceptor
        certificate = connection.getpeercert(binary_form=True)
        if certificate is not None and connection.session_reused and expiry(certificate) < clock.wall():
            self._refuse(client, Cause("expired", "it resumes a session, and its certificate has expired since then"))
            return
        try:
            user = ANONYMOUS if certificate is None else self._user(certificate)
        except ValueError as error:
            self._refuse(client, Cause("principal", str(error)))
            return
        session = Session(acceptor.host_of(server_name(connection)), self._slot, self._address)
        session.identify(user)
        client.set_protocol(cast("asyncio.Protocol", session))
        session.connection_made(client)

    def data_received(self, data: bytes) -> None:
        """Never called: a refused client is not read."""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The client was refused before its session started."""
        self._slot.release()

    def _refuse(self, client: asyncio.Transport, cause: Cause) -> None:
        acceptor = self._acceptor
        acceptor.failures[cause.reason] += 1
        host, port = self._address
        _log.warning(
            "listener %s: connection refused: %s",
            acceptor.listener, cause.words, extra={"peer": f"{host}:{port}", "reason": f"tls_{cause.reason}"},
        )  # fmt: skip
        client.abort()

    def _user(self, certificate: bytes) -> str:
        name = subject(certificate)
        mapping = self._acceptor.mapping
        user = mapping.user(name)
        if user is None:
            raise ValueError(f"no rule of tls.principal_mapping_rules {mapping.text!r} matches the certificate's {name!r}")
        return user
