"""Starts the session of a TLS client after its handshake: finds its user, its broker, and a buffer to decrypt into."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, cast

from gateway.proxy.connection import Session, SessionHost
from gateway.proxy.identity import ANONYMOUS
from gateway.proxy.listeners.acceptor import Slot
from gateway.proxy.tls.handshakes import client_certificate, server_name
from gateway.proxy.tls.principal import PrincipalMapping
from gateway.proxy.tls.subject import subject

BUFFER_BYTES: Final = 256 * 1024

_buffer: Final = memoryview(bytearray(BUFFER_BYTES))
"""uvloop decrypts the records of all connections into this buffer. `buffer_updated` copies the bytes before the next read."""

_log = logging.getLogger("weir.cluster")


@dataclass(frozen=True, slots=True)
class TlsAcceptor:
    """The settings of one port. `host_of` maps a server name (SNI) to a session host; `failures` counts by reason."""

    listener: str
    host_of: Callable[[str | None], SessionHost]
    mapping: PrincipalMapping
    failures: "Counter[str]"


class AcceptedTlsClient(asyncio.Protocol):
    """The first protocol of a TLS connection. After the handshake, its session takes over.

    A client without a certificate is ANONYMOUS. As in Kafka, the gateway refuses a client if no rule matches its
    certificate's subject.
    """

    def __init__(self, acceptor: TlsAcceptor, slot: Slot) -> None:
        self._acceptor = acceptor
        self._slot = slot

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        client = cast("asyncio.Transport", transport)
        acceptor = self._acceptor
        try:
            user = self._user(client)
        except ValueError as error:
            acceptor.failures["principal"] += 1
            host, port = client.get_extra_info("peername")[:2]
            _log.warning(
                "listener %s: connection refused: %s",
                acceptor.listener, error, extra={"peer": f"{host}:{port}", "reason": "tls_principal"},
            )  # fmt: skip
            client.abort()
            return
        session = Session(acceptor.host_of(server_name(client)), self._slot)
        session.identify(user)
        client.set_protocol(cast("asyncio.Protocol", BufferedTlsProtocol(session)))
        session.connection_made(client)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The client was refused before its session started."""
        self._slot.release()

    def _user(self, client: asyncio.Transport) -> str:
        certificate = client_certificate(client)
        if certificate is None:
            return ANONYMOUS
        name = subject(certificate)
        mapping = self._acceptor.mapping
        user = mapping.user(name)
        if user is None:
            raise ValueError(f"no rule of tls.principal_mapping_rules {mapping.text!r} matches the certificate's {name!r}")
        return user


class ClientProtocol(Protocol):
    """The methods of a session that its client's transport calls."""

    def data_received(self, data: bytes) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def eof_received(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...


class BufferedTlsProtocol:
    """An asyncio buffered protocol in front of a session.

    With a plain protocol, uvloop allocates memory for each TLS record of up to 16 KiB and joins the records afterwards. Large
    requests then cost a third more CPU.
    """

    def __init__(self, session: ClientProtocol) -> None:
        self._session = session

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Does nothing: `AcceptedTlsClient` has already given the transport to the session."""

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return _buffer

    def buffer_updated(self, count: int) -> None:
        self._session.data_received(bytes(_buffer[:count]))

    def pause_writing(self) -> None:
        self._session.pause_writing()

    def resume_writing(self) -> None:
        self._session.resume_writing()

    def eof_received(self) -> None:
        self._session.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._session.connection_lost(exc)
