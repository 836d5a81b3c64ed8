"""Clients whose TLS handshake is done: whose requests they are going to send, and to which broker."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from gateway.proxy.connection import Session, SessionHost
from gateway.proxy.identity import ANONYMOUS
from gateway.proxy.listeners.admission import Slot
from gateway.proxy.tls.handshakes import client_certificate, server_name
from gateway.proxy.tls.principal import PrincipalMapping
from gateway.proxy.tls.secured import SecuredEnd
from gateway.proxy.tls.subject import subject

_log = logging.getLogger("weir.cluster")


@dataclass(frozen=True, slots=True)
class Welcome:
    """What is known at one port of a listener about those who come.

    `host_of` gives what a session for a server name (SNI) finds around it; `mapping` gives users' names; `failures` counts by
    reason.
    """

    listener: str
    host_of: Callable[[str | None], SessionHost]
    mapping: PrincipalMapping
    failures: "Counter[str]"


class Arrival(asyncio.Protocol):
    """The first protocol of a TLS connection. Once the handshake has told who the client is, its session takes over.

    Who has no certificate is ANONYMOUS; who has one whose subject no rule applies to is refused, as by Kafka.
    """

    def __init__(self, welcome: Welcome, slot: Slot) -> None:
        self._welcome = welcome
        self._slot = slot

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is done."""
        client = cast("asyncio.Transport", transport)
        welcome = self._welcome
        try:
            user = self._user(client)
        except ValueError as error:
            welcome.failures["principal"] += 1
            host, port = client.get_extra_info("peername")[:2]
            _log.warning(
                "listener %s: connection refused: %s",
                welcome.listener, error, extra={"peer": f"{host}:{port}", "reason": "tls_principal"},
            )  # fmt: skip
            client.abort()
            return
        session = Session(welcome.host_of(server_name(client)), self._slot)
        session.identify(user)
        client.set_protocol(cast("asyncio.Protocol", SecuredEnd(session)))
        session.connection_made(client)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """It was refused."""
        self._slot.release()

    def _user(self, client: asyncio.Transport) -> str:
        certificate = client_certificate(client)
        if certificate is None:
            return ANONYMOUS
        name = subject(certificate)
        mapping = self._welcome.mapping
        user = mapping.user(name)
        if user is None:
            raise ValueError(f"no rule of tls.principal_mapping_rules {mapping.text!r} applies to the certificate's {name!r}")
        return user
